"""Triton kernels, a module per family of ops. Nothing here is imported before an op is chosen."""
