"""A Jinja environment for chat templates, which are programs that came with a checkpoint.

A template cannot reach Python's internals, change the values that it gets, read files or import.
Its loops, calls and the texts that it builds are bounded, so that it cannot hold up a server. What
templates may use follows the custom of transformers' `apply_chat_template`: ``raise_exception``,
``strftime_now``, ``tojson`` without HTML escapes, loop controls, ``{% generation %}`` blocks, and
block tags that leave no white space behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["MAX_STEPS", "MAX_TEXT", "SecurityError", "TemplateEnvironment", "TemplateRefusal"]

MAX_STEPS = 1_000_000
"""Most steps of one rendering, about a second's worth: a loop turn is one, a call is more."""
_CALL_STEPS = 10
MAX_TEXT = 1 << 24
"""Most characters of a text that a template builds."""
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)")


class TemplateRefusal(jinja2.TemplateError):
    """The template called ``raise_exception``: it does not accept this conversation."""


class _Steps:
    """What is left of `MAX_STEPS` in one rendering."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise SecurityError(f"its loops and calls take more than {MAX_STEPS} steps")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. Compile with `compile_bounded`, render with `render_bounded`."""

    # Products, powers, sums and formatting can build texts of any size from a few characters.
    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        # Not optimised: folding constants would run parts of the template while compiling it.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[LoopControlExtension, _GenerationBlock],
        )
        # Of the rendering that runs in this thread; a template is shared by many.
        self._steps: ContextVar[_Steps] = ContextVar("steps")
        self.turn = object()
        """What every loop turn calls; `call` knows it."""
        self.filters["tojson"] = _tojson
        self.globals = {
            "range": self.globals["range"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "dict": _new_dict,
            "namespace": _TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": lambda pattern: now().strftime(pattern),
        }

    def compile_bounded(self, source: str) -> tuple[jinja2.Template, nodes.Template]:
        """The template and its syntax tree as written. Raises `jinja2.TemplateSyntaxError`."""
        tree = self.parse(source)
        code = self.compile(_Bounds().visit(self.parse(source)))
        return jinja2.Template.from_code(self, code, self.globals), tree

    def render_bounded(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """The text. Raises `SecurityError` if a bound is passed, and whatever the template
        raises."""
        pieces, size = [], 0
        token = self._steps.set(_Steps())
        try:
            for piece in template.generate(variables):
                size += len(piece)
                _check_size(size)
                pieces.append(piece)
        finally:
            self._steps.reset(token)
        return "".join(pieces)

    def joined(self, *values: Any) -> str:
        """What ``~`` means, bounded."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Every call of a template. The names leave all others free for the template's keyword
        arguments."""
        if __obj is __self.turn:
            __self._steps.get().take(1)
            return ""
        __self._steps.get().take(_CALL_STEPS)
        for value in (*args, *kwargs.values()):
            if isinstance(value, int):
                _check_size(value)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            _check_size(len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, with the size of the result checked before it is made."""
        if operator == "*":
            _check_size(_length(left) * right if isinstance(right, int) else 0)
            _check_size(_length(right) * left if isinstance(left, int) else 0)
        elif operator == "+":
            _check_size(_length(left) + _length(right))
        elif operator == "**":
            _check_size(max(abs(left), abs(right)) if isinstance(left, int) else 0)
            _check_size(right if isinstance(right, int) else 0)
        elif isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise SecurityError("a format is wider than 9999 characters")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Reaching for something forbidden is an error at once, not an empty text."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not open to templates")


class _TemplateNamespace(Namespace):
    """``namespace()``; attributes that begin with an underscore are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # The first argument stays unnamed, since a template may name an attribute ``self``.
        self, *rest = args
        Namespace.__init__(self, *rest, **kwargs)
        for name in dict(*rest, **kwargs):
            _check_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _GenerationBlock(Extension):
    """``{% generation %}…{% endgeneration %}``: marks what the assistant wrote; renders as its
    content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Bounds(NodeTransformer):
    """Makes every loop turn a call, and ``~`` a call that checks the size."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("joined"), node.nodes, [], None, None)
        call.set_lineno(node.lineno)
        return call


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _check_size(size: int | float) -> None:
    if size > MAX_TEXT:
        raise SecurityError(f"it builds a text, list or number beyond {MAX_TEXT}")


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} begins with an underscore")


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRefusal(str(message))


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the model saw it in training: no HTML escapes, characters as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
