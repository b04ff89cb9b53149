"""Which logits processors serve a request, and whether what it asks of them is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.logits import LogitsProcessor, LogitsRequest
from pegboard.api.params import SamplingParams
from pegboard.config.engine import EngineConfig
from pegboard.errors import PluginError, RequestError

if TYPE_CHECKING:
    from pegboard.api.tokenizer import TextTokenizer
    from pegboard.plugins import Board

__all__ = ["LogitsRoster", "make_roster"]


@attrs.frozen
class LogitsRoster:
    """The logits processors of an engine; empty in one without a board."""

    processors: tuple[LogitsProcessor, ...] = ()
    """In the order of their work: those of every request, then the others by name."""
    always: frozenset[str] = frozenset()
    """Names of those that serve every request."""
    _sources: Mapping[str, str] = attrs.field(factory=dict)
    """Name → distribution and version."""
    _handed: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Name → settings and metrics of its plugin."""
    _chance: Callable[[str], str] = attrs.field(default=lambda _: "", eq=False, repr=False)
    """Argument → sentences on plugins that are not loaded and might have it."""
    _wanted: set[str] = attrs.field(factory=set, init=False, eq=False, repr=False)
    """Names of those that a request has asked for, once there is one."""
    _told: Mapping[str, Any] = attrs.field(factory=dict)
    """What every processor is told of the model."""

    def telling(
        self, eos_token_ids: tuple[int, ...], open_tokenizer: Callable[[], TextTokenizer | None]
    ) -> LogitsRoster:
        """The same, in a process that knows the model; `open_tokenizer` is called whenever a
        processor asks for the tokeniser."""
        told = {"eos_token_ids": eos_token_ids, "open_tokenizer": open_tokenizer}
        return attrs.evolve(self, told=told)

    @property
    def _owners(self) -> dict[str, str]:
        """Argument → name of the processor."""
        return {key: one.name for one in self.processors for key in one.arguments}

    def asked(self, params: SamplingParams) -> tuple[LogitsProcessor, ...]:
        """Those that a request uses."""
        given = params.extra_args or {}
        if not self.always and not given:
            return ()
        owners = self._owners
        names = self.always | {owners.get(key, "") for key in given}
        return tuple(processor for processor in self.processors if processor.name in names)

    def serving(self, params: SamplingParams) -> tuple[LogitsProcessor, ...]:
        """Of these, the ones that are shown its logits."""
        asked = self.asked(params)
        return tuple(one for one in asked if not (params.greedy and one.argmax_invariant))

    @property
    def used(self) -> tuple[str, ...]:
        """Names of those that serve every request, and of those that one has asked for so far."""
        names = self.always | self._wanted
        return tuple(one.name for one in self.processors if one.name in names)

    def arguments(self, processor: LogitsProcessor, params: SamplingParams) -> Mapping[str, Any]:
        """What a request says to one processor."""
        given = params.extra_args or {}
        return MappingProxyType({key: given[key] for key in processor.arguments if key in given})

    def title(self, processor: LogitsProcessor) -> str:
        """What it is called in messages."""
        source = self._sources.get(processor.name)
        return f"logits processor {processor.name!r}" + (f" of {source}" if source else "")

    def handed(self, processor: LogitsProcessor) -> Mapping[str, Any]:
        """What its context is given: facts of the model, its plugin's settings and metrics."""
        return {**self._told, **self._handed.get(processor.name, {})}

    def check(self, params: SamplingParams, vocab_size: int) -> None:
        """Raise `RequestError` for an argument that nobody has or that its processor refuses."""
        unknown = [key for key in params.extra_args or () if key not in self._owners]
        if unknown:
            raise self._unknown(unknown[0])
        for processor in self.asked(params):
            self._wanted.add(processor.name)
            if processor.check is not None:
                arguments = self.arguments(processor, params)
                settings = self.handed(processor).get("settings")
                self._check(
                    processor,
                    LogitsRequest(arguments, params, vocab_size, settings=settings, **self._told),
                )

    def _check(self, processor: LogitsProcessor, request: LogitsRequest) -> None:
        assert processor.check is not None
        try:
            processor.check.load()(request)
        except RequestError as error:
            if error.field is not None:
                raise
            raise RequestError(str(error), field="extra_args") from error
        except Exception as error:
            raise RequestError(
                f"extra_args={dict(request.arguments)!r}: {self.title(processor)} failed to check "
                f"it: {type(error).__name__}: {error}",
                field="extra_args",
            ) from error

    def _unknown(self, key: str) -> RequestError:
        near = difflib.get_close_matches(key, self._owners, n=1)
        known = ", ".join(sorted(self._owners)) or "there is none"
        hint = f"did you mean {near[0]!r}?" if near else f"known arguments: {known}"
        chance = self._chance(key)
        return RequestError(
            f"extra_args[{key!r}] is not allowed: no logits processor has this argument; {hint}"
            + (f". {chance}" if chance else ""),
            field="extra_args",
        )


def make_roster(board: Board | None, config: EngineConfig) -> LogitsRoster:
    """Everything on the board. Raises `MissingPluginError` for a name in ``logits_processors`` that
    nobody registered, `PluginError` for one whose check cannot be imported."""
    if board is None:
        return LogitsRoster()
    wanted = f"logits_processors={list(config.logits_processors)!r}"
    named = [board.require("logits", name, wanted_by=wanted) for name in config.logits_processors]
    registry = board.registry("logits")
    for name, found in zip(config.logits_processors, named, strict=True):
        if found.name != name:
            raise PluginError(
                f"{name!r} in {wanted} is an argument of logits processor {found.name!r}; name that"
            )
        if found.check is not None:
            found.check.load()
    others = sorted((one for one in registry if one not in named), key=lambda one: one.name)
    processors = (*named, *others)
    return LogitsRoster(
        processors,
        frozenset(config.logits_processors),
        {one.name: str(registry.provenance(one.name)) for one in processors},
        {one.name: board.handed("logits", one.name) for one in processors},
        partial(board.chance, "logits"),
    )
