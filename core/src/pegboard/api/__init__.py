"""The contracts that plugins implement and the values they exchange.

One module per surface; its docstrings are the manual. Everything here is importable without torch.
"""
