"""Front end, inwards: from what a user gives to checked `EngineRequest`s.

Every rule that needs the model's facts (vocabulary, context) is here, so that nothing invalid
reaches the engine.
"""

from __future__ import annotations

import numbers
import operator
import random
import reprlib
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

import attrs
import msgspec

from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.config.logits import LogitsRoster
from pegboard.errors import RequestError

__all__ = ["InputProcessor", "Prompt", "TokenisedPrompt", "is_token_like"]

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or ``{"prompt": text}`` / ``{"prompt_token_ids": ids}`` (one of the two) with an
optional ``cache_salt`` and ``kv_transfer_params``."""

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt", "kv_transfer_params")


class _Encoder(Protocol):
    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


@attrs.frozen
class TokenisedPrompt:
    """A prompt whose ids were checked."""

    ids: list[int]
    text: str | None = None
    cache_salt: str | None = None
    kv_transfer: dict[str, Any] | None = None
    """For the KV connector."""


@attrs.define
class InputProcessor:
    """Turns prompts and parameters into requests."""

    encoder: _Encoder | None
    """None without a tokeniser: prompts must then be token ids."""
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    seeds: random.Random
    """Draws a seed for each request that brings none, in the order of submission."""
    encoder_problem: str = ""
    """Why there is no tokeniser."""
    priorities: bool = False
    """The scheduling policy looks at priorities."""
    processors: LogitsRoster = attrs.field(factory=LogitsRoster)
    """Judge `SamplingParams.extra_args`."""

    def tokenise(self, prompt: Prompt | TokenisedPrompt) -> TokenisedPrompt:
        """Token ids of any form of prompt, checked. Raises `RequestError` with field ``prompt``."""
        if isinstance(prompt, TokenisedPrompt):
            return prompt
        if isinstance(prompt, Mapping):
            return self._from_mapping(prompt)
        if isinstance(prompt, str):
            return self.checked(self._encode(prompt), text=prompt)
        if _lists_ids(prompt):
            return self.checked(list(prompt))
        raise _bad_prompt(
            f"a {type(prompt).__name__} is neither text, nor a list of token ids, nor a mapping"
        )

    def checked(
        self, ids: list[Any], *, text: str | None = None, salt: str | None = None
    ) -> TokenisedPrompt:
        """Check token ids: not empty, integers, inside the vocabulary, not longer than the
        context."""
        if not ids:
            raise _bad_prompt("it is empty and the tokeniser adds no beginning-of-sequence token")
        if not self._plainly_valid(ids):
            self._check_each(ids)
        if len(ids) > self.max_model_len:
            raise _bad_prompt(
                f"it has {len(ids)} tokens, but the context holds {self.max_model_len} "
                "tokens of prompt and output together (max_model_len)"
            )
        return TokenisedPrompt(ids, text, salt)

    def _plainly_valid(self, ids: list[Any]) -> bool:
        """The usual case, at a quarter of the time: Python's integers, all in the vocabulary."""
        return set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < self.vocab_size

    def _check_each(self, ids: list[Any]) -> None:
        for place, token in enumerate(ids):
            if type(token) is not int:
                token = ids[place] = _token_id(token, place)  # noqa: PLW2901
            if not 0 <= token < self.vocab_size:
                raise _bad_prompt(f"token {place} is {token}, outside 0 to {self.vocab_size - 1}")

    def requests(
        self,
        request_id: str,
        prompt: TokenisedPrompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        arrival: float | None = None,
    ) -> list[EngineRequest]:
        """One engine request per sequence; those after the first share the prompt of the first."""
        self.check_params(params)
        self.check_priority(priority)
        first = EngineRequest(
            request_id=f"{request_id}.0",
            prompt_ids=prompt.ids,
            params=params,
            seed=self.seeds.getrandbits(63) if params.seed is None else params.seed,
            end_ids=self._end_ids(params),
            max_tokens=self._room(len(prompt.ids), params),
            arrival=time.time() if arrival is None else arrival,
            priority=priority,
            cache_salt=prompt.cache_salt,
            kv_transfer=prompt.kv_transfer,
        )
        if params.n == 1:
            return [first]
        return [first, *self._children(first, request_id)]

    def check_params(self, params: Any) -> None:
        """Check what depends on the model and on plugins: token ids lie in the vocabulary, stop
        strings need a tokeniser, logits processors take their arguments."""
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params must be SamplingParams, not {type(params).__name__}",
                field="sampling_params",
            )
        if params.stop and self.encoder is None:
            raise RequestError(
                f"stop={reprlib.repr(params.stop)} is not allowed: None, since this engine has no "
                f"tokeniser{self._why_none}; stop_token_ids work",
                field="stop",
            )
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token in getattr(params, field) or ():
                if token >= self.vocab_size:
                    raise RequestError(
                        f"{field} names token {token}, outside 0 to {self.vocab_size - 1}",
                        field=field,
                    )
        self.processors.check(params, self.vocab_size)

    def check_priority(self, priority: Any) -> None:
        """Check that it is an integer, and 0 where no policy looks at it."""
        whole = isinstance(priority, int) and not isinstance(priority, bool)
        if not whole or not -(2**63) <= priority < 2**63:
            raise RequestError(
                f"priority={priority!r} is not allowed: it must be an integer of 64 bits",
                field="priority",
            )
        if priority != 0 and not self.priorities:
            raise RequestError(
                f"priority={priority!r} is not allowed: 0, since only "
                "scheduling_policy='priority' looks at it",
                field="priority",
            )

    def _from_mapping(self, prompt: Mapping[str, Any]) -> TokenisedPrompt:
        unknown = [key for key in prompt if key not in _PROMPT_KEYS]
        if unknown:
            raise _bad_prompt(f"key {unknown[0]!r} is not one of {', '.join(_PROMPT_KEYS)}")
        salt = prompt.get("cache_salt")
        _check_salt(salt)
        transfer = prompt.get("kv_transfer_params")
        if transfer is not None and not isinstance(transfer, Mapping):
            raise RequestError(
                f"kv_transfer_params={transfer!r} must be a mapping", field="kv_transfer_params"
            )
        tokens = self._ids_of(prompt, salt)
        return tokens if transfer is None else attrs.evolve(tokens, kv_transfer=dict(transfer))

    def _ids_of(self, prompt: Mapping[str, Any], salt: str | None) -> TokenisedPrompt:
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if ids is not None and text is not None:
            raise _bad_prompt("it has both 'prompt' and 'prompt_token_ids'; give one of them")
        if ids is not None:
            if not _lists_ids(ids):
                raise _bad_prompt(f"prompt_token_ids is a {type(ids).__name__}, not a list of ids")
            return self.checked(list(ids), salt=salt)
        if not isinstance(text, str):
            raise _bad_prompt(
                "a mapping needs 'prompt' (text) or 'prompt_token_ids' (a list of ids)"
            )
        return self.checked(self._encode(text), text=text, salt=salt)

    def _encode(self, text: str) -> list[int]:
        if self.encoder is None:
            raise _bad_prompt(f"this engine has no tokeniser{self._why_none}; give token ids")
        self.check_length(text)
        return self.encoder.encode(text)

    def check_length(self, text: str) -> None:
        """Refuse a text that cannot fit however well its tokens cover it, before it is encoded:
        that takes time and memory in proportion. Raises `RequestError`."""
        if len(text) <= self.max_model_len:
            return
        longest = getattr(self.encoder, "longest_token", None)
        if longest is not None and len(text) > self.max_model_len * longest:
            raise _bad_prompt(
                f"it has {len(text)} characters, but the context holds {self.max_model_len} tokens "
                f"of prompt and output together (max_model_len), of at most {longest} characters"
            )

    @property
    def _why_none(self) -> str:
        """Why there is no tokeniser, in brackets."""
        return f" ({self.encoder_problem})" if self.encoder_problem else ""

    def _end_ids(self, params: SamplingParams) -> list[int]:
        own = [] if params.ignore_eos else list(self.eos_token_ids)
        return list(dict.fromkeys(own + list(params.stop_token_ids or ())))

    def _room(self, prompt_tokens: int, params: SamplingParams) -> int:
        room = self.max_model_len - prompt_tokens
        wanted = params.max_tokens
        if wanted is not None and wanted <= room:
            return wanted
        if wanted is None and room >= max(params.min_tokens, 1):
            return room
        if wanted is None and room >= 1:
            raise RequestError(
                f"min_tokens={params.min_tokens} is not allowed: at most {room}, since the context "
                f"holds {self.max_model_len} tokens (max_model_len) and the prompt has "
                f"{prompt_tokens}",
                field="min_tokens",
            )
        asked = "at least one output token" if wanted is None else f"max_tokens={wanted}"
        raise RequestError(
            f"the context holds {self.max_model_len} tokens (max_model_len), but the prompt has "
            f"{prompt_tokens} and {asked} was asked for",
            field="max_tokens",
        )

    @staticmethod
    def _children(first: EngineRequest, request_id: str) -> list[EngineRequest]:
        params = first.params
        if params.prompt_logprobs is not None:  # the first sequence reports them for all
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        return [
            msgspec.structs.replace(
                first,
                request_id=f"{request_id}.{number}",
                params=params,
                parent=first.request_id,
                child=number,
            )
            for number in range(1, params.n)
        ]


def _check_salt(salt: object) -> None:
    """A salt is hashed as UTF-8, so text that has none (a lone surrogate) is refused."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise RequestError(f"cache_salt={salt!r} must be a non-empty string", field="cache_salt")
    try:
        salt.encode()
    except UnicodeEncodeError:
        raise RequestError(
            f"cache_salt={salt!r} must be text that UTF-8 can hold", field="cache_salt"
        ) from None


def _lists_ids(value: object) -> bool:
    """Whether `value` may be a list of token ids: bytes are no tokens, a set has no order."""
    unfit = (str, bytes, bytearray, memoryview, Mapping, Set)
    scalar = getattr(value, "shape", None) == ()  # which says that it can be iterated over
    return isinstance(value, Iterable) and not isinstance(value, unfit) and not scalar


def _token_id(token: Any, place: int) -> int:
    """An integer of another library as Python's."""
    if not is_token_like(token):
        raise _bad_prompt(f"token {place} is {token!r}, not an integer")
    return operator.index(token)


def is_token_like(value: Any) -> bool:
    """An integer, also one of another library or a tensor without axes; no truth value."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return False
    if isinstance(value, numbers.Integral):
        return True
    if getattr(value, "shape", None) != ():
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _bad_prompt(reason: str) -> RequestError:
    return RequestError(f"the prompt is not valid: {reason}", field="prompt")
