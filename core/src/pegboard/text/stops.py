"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs

from pegboard.errors import RequestError

__all__ = ["StopMatch", "StopMatcher", "StopSet"]


@attrs.frozen
class StopMatch:
    """A stop string that was found. Offsets count characters from the start of the text."""

    stop: str
    start: int
    """Offset of its first character."""
    end: int
    """Offset after its last character."""


@attrs.define(eq=False)
class _Node:
    """A prefix of some stop string, in an Aho–Corasick automaton."""

    depth: int
    following: dict[str, _Node] = attrs.field(factory=dict)
    fallback: _Node | None = None
    """The longest proper suffix of this prefix that is a prefix too; None at the root."""
    stop: str | None = None
    """The longest stop string that ends here."""


class StopSet:
    """Stop strings made ready once, for all matchers of a request's sequences.

    Work and memory are linear in the characters of the strings. Raises `RequestError` for an empty
    stop string, which would end every text at once.
    """

    __slots__ = ("_root",)

    def __init__(self, stops: Iterable[str]) -> None:
        self._root = _automaton(tuple(stops))

    @property
    def root(self) -> _Node:
        """Where matching begins; nothing in it changes any more."""
        return self._root


class StopMatcher:
    """Reads a text character by character and finds the first stop string, however the text is cut
    into pieces.

    The match that *ends* first counts; of those that end together, the longest, so that no
    character of a stop is shown. `safe` says how much of the text can be shown: all but the longest
    ending that may yet become a stop. The work is constant per character (Aho and Corasick 1975).
    """

    __slots__ = ("_node", "_read", "_root")

    def __init__(self, stops: Iterable[str] | StopSet) -> None:
        self._root = (stops if isinstance(stops, StopSet) else StopSet(stops)).root
        self._node = self._root
        self._read = 0

    @property
    def active(self) -> bool:
        """True if there is anything to find."""
        return bool(self._root.following)

    @property
    def safe(self) -> int:
        """Characters, from the start of the text, that cannot belong to a stop string that is still
        to be completed."""
        return self._read - self._node.depth

    def scan(self, text: str, *, armed: bool = True) -> StopMatch | None:
        """Read on. Returns the first match that ends in `text`, reading no further, else None.

        `armed=False` reads without matching; a stop that began in such text and ends in armed text
        still counts.
        """
        node = self._node
        for place, char in enumerate(text, 1):
            node = self._step(node, char)
            if armed and node.stop is not None:
                self._node, self._read = node, self._read + place
                return StopMatch(node.stop, self._read - len(node.stop), self._read)
        self._node, self._read = node, self._read + len(text)
        return None

    def _step(self, node: _Node, char: str) -> _Node:
        while char not in node.following:
            if node.fallback is None:
                return node
            node = node.fallback
        return node.following[char]


def _automaton(stops: tuple[str, ...]) -> _Node:
    root = _Node(0)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise RequestError(
                f"stop={stop!r} is not allowed: strings of at least one character", field="stop"
            )
        node = root
        for char in stop:
            node = node.following.setdefault(char, _Node(node.depth + 1))
        node.stop = stop
    _link(root)
    return root


def _link(root: _Node) -> None:
    """Set every node's fallback, nearest the root first; a stop that ends at a fallback ends here
    as well."""
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        for char, child in node.following.items():
            child.fallback = _fallback(root, node, char)
            child.stop = child.stop or child.fallback.stop
            waiting.append(child)


def _fallback(root: _Node, parent: _Node, char: str) -> _Node:
    node = parent.fallback
    while node is not None:
        if char in node.following:
            return node.following[char]
        node = node.fallback
    return root
