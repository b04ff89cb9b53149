"""What a chat template expects of a message's content, read off its syntax tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import attrs
from jinja2 import nodes

__all__ = ["CONTENT_FORMATS", "ContentFacts", "content_facts"]

CONTENT_FORMATS = ("auto", "string", "openai")
"""How the content of messages reaches a template: as it looks for, as one text, as a list of
parts."""

NodeT = TypeVar("NodeT", bound=nodes.Node)

_LIST_FILTERS = frozenset(("list", "reject", "rejectattr", "reverse", "select", "selectattr"))
_KIND_TESTS = frozenset(("iterable", "mapping", "sequence", "string"))


@attrs.frozen
class ContentFacts:
    """How a template treats the content of a message."""

    takes_parts: bool
    """It loops over the content, so it can be given a list of parts."""
    takes_text: bool
    """It can be given plain text: it does not loop over the content, or asks for its kind first."""
    tells_null: bool
    """It asks whether the content is null, and not whether it is empty text: one that does may
    measure what it found to be neither."""

    def in_format(self, wanted: str) -> ContentFacts:
        """As if the template expected one of `CONTENT_FORMATS`."""
        if wanted == "auto":
            return self
        parts = wanted == "openai"
        return attrs.evolve(self, takes_parts=parts, takes_text=not parts)


def content_facts(tree: nodes.Template) -> ContentFacts:
    """Facts on the expression ``message.content`` (however the message is called) and the names
    that stand for it.

    A name stands for the content if it is called so, or if the content was assigned to it.
    """
    names = _names_of_content(tree)
    loops = any(_is_content(_loop_source(loop.iter), names) for loop in _all(tree, nodes.For))
    tests = {test.name for test in _all(tree, nodes.Test) if _is_content(test.node, names)}
    compared = {value for node in _all(tree, nodes.Compare) for value in _compared(node, names)}
    return ContentFacts(
        takes_parts=loops,
        takes_text=not loops or bool(tests & _KIND_TESTS),
        tells_null=(None in compared or "none" in tests) and "" not in compared,
    )


def _all(tree: nodes.Node, kind: type[NodeT]) -> Iterator[NodeT]:
    return tree.find_all(kind)


def _names_of_content(tree: nodes.Template) -> frozenset[str]:
    names = {"content"}
    for assign in _all(tree, nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset(names)):
            names.add(assign.target.name)
    return frozenset(names)


def _is_content(node: nodes.Node | None, names: frozenset[str]) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return _is_key(node.arg)
    if isinstance(node, nodes.Call):
        method = node.node
        return (
            isinstance(method, nodes.Getattr) and method.attr == "get" and _is_key(*node.args[:1])
        )
    return isinstance(node, nodes.Name) and node.name in names


def _is_key(node: nodes.Node | None = None) -> bool:
    return isinstance(node, nodes.Const) and node.value == "content"


def _loop_source(node: nodes.Node | None) -> nodes.Node | None:
    """What a loop runs over, with slices and filters that keep a list a list taken off."""
    while True:
        if isinstance(node, nodes.Filter):
            kept = node.name in _LIST_FILTERS
        elif isinstance(node, nodes.Getitem):
            kept = isinstance(node.arg, nodes.Slice)
        else:
            return node
        if not kept:
            return node
        node = node.node


def _compared(node: nodes.Compare, names: frozenset[str]) -> list[str | None]:
    """Of null and texts, what the content is compared with."""
    if not _is_content(node.expr, names):
        return []
    constants = [op.expr for op in node.ops if op.op in ("eq", "ne")]
    values = [found.value for found in constants if isinstance(found, nodes.Const)]
    return [value for value in values if value is None or isinstance(value, str)]
