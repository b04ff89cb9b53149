"""Whether a module can do nothing but declare: import contracts, and say what it offers.

Nearly every plugin is so. Its source, which is read anyway, then shows that importing it and asking
its hooks changes nothing outside, and nobody has to compare the core before and after, which takes
longer than all else that is done for it. The rules allow little, and what they do not allow is no
fault: such a plugin is watched.
"""

from __future__ import annotations

import ast
from types import NoneType

__all__ = ["only_declares"]

_CONTRACTS = "pegboard.api."
_LIBRARIES = ("__future__", "collections.abc", "typing")
"""Of which names may be imported; they are for annotations."""
_CONTAINERS = ("dict", "frozenset", "list", "set", "tuple")
_MARK = "hookimpl"
_ALLOWED = frozenset(
    (
        *(ast.Module, ast.ImportFrom, ast.alias, ast.Expr, ast.Assign, ast.AnnAssign, ast.Return),
        *(ast.FunctionDef, ast.arguments, ast.arg, ast.Call, ast.keyword, ast.Starred, ast.If),
        *(ast.Name, ast.Load, ast.Store, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice),
        *(ast.Tuple, ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.FormattedValue, ast.IfExp),
        *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension),
        *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add),
        *(ast.BitOr, ast.Mult, ast.Sub, ast.Compare, ast.Eq, ast.NotEq, ast.Is, ast.IsNot),
        *(ast.In, ast.NotIn, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    )
)
"""No loops, no classes, no ``del``, no ``with``; and no ``+=``, which changes what others hold."""

_JUDGED = frozenset(
    (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.FunctionDef, ast.arg, ast.ImportFrom)
)
"""Of these, the ones that are harmless depending on what stands in them."""
_LEAVES = frozenset((ast.Load, ast.Store, ast.Constant, int, str, NoneType))
"""What has nothing harmful in it; most of what a tree consists of."""


def only_declares(tree: ast.Module) -> bool:
    """Whether running this module and calling its functions can change nothing but its own names.

    It may call the classes of contracts, the mark of hooks, the builtin containers and functions of
    its own, and store into names alone. Nobody's attributes, methods or functions are called.
    """
    names, todo = _Names(), list[ast.AST]([tree])
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind not in _ALLOWED or (kind in _JUDGED and not names.take(node)):
            return False
        for value in vars(node).values():  # in a fraction of the time that `iter_child_nodes` takes
            if type(value) is list:
                todo += [p for p in value if type(p) not in _LEAVES and isinstance(p, ast.AST)]
            elif type(value) not in _LEAVES and isinstance(value, ast.AST):
                todo.append(value)
    return names.are_harmless()


class _Names:
    """What a module calls and stores."""

    def __init__(self) -> None:
        self._callable = set(_CONTAINERS)
        """May be called, as long as nothing else is stored under the name."""
        self._functions: list[str] = []
        self._called = set[str]()
        self._stored = set[str]()

    def are_harmless(self) -> bool:
        """Whether what is called is what it seems to be."""
        callable_names = self._callable.union(self._functions)
        once = len(callable_names) == len(self._callable) + len(self._functions)
        return once and self._called <= callable_names and not self._stored & callable_names

    def take(self, node: ast.AST) -> bool:
        """Whether the node is harmless by itself; its names are kept."""
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                self._stored.add(node.id)
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            return isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Call):
            return self._call(node.func)
        if isinstance(node, ast.FunctionDef):
            self._functions.append(node.name)
            return all(isinstance(d, ast.Call) or self._call(d) for d in node.decorator_list)
        if isinstance(node, ast.arg):
            self._stored.add(node.arg)
        return not isinstance(node, ast.ImportFrom) or self._import(node)

    def _call(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            self._called.add(function.id)
        return isinstance(function, ast.Name)

    def _import(self, node: ast.ImportFrom) -> bool:
        module, names = node.module or "", [alias.name for alias in node.names]
        of_contracts = module.startswith(_CONTRACTS)
        self._stored |= {alias.asname for alias in node.names if alias.asname}
        if of_contracts:
            self._callable |= {name for name in names if name == _MARK or name[:1].isupper()}
        else:
            self._stored |= set(names)
        return "*" not in names and not node.level and (of_contracts or module in _LIBRARIES)
