"""Choosing the platform and an attention backend per group.

An error lists every candidate and why it does not serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import attrs

from pegboard.api.attention import AttentionBackend
from pegboard.api.kv import KVGroup, RecurrentSpec
from pegboard.api.platform import Platform, ProbeResult
from pegboard.errors import SelectionError

__all__ = [
    "BackendWish",
    "choose_backend",
    "choose_platform",
    "choose_prompts_backend",
    "probe_platform",
]

_Ranked = TypeVar("_Ranked", Platform, AttentionBackend)


def _nothing() -> str:
    return ""


def choose_platform(
    platforms: Iterable[Platform],
    wanted: str | None = None,
    left_out: Callable[[], str] = _nothing,
) -> Platform:
    """The usable platform of highest priority; with `wanted` (``platform=``) that one or none.

    `left_out` gives sentences on plugins that might bring another one and did not load.
    Raises `SelectionError` if none is usable, or if several of the same highest priority are.
    """
    candidates = [p for p in platforms if wanted is None or p.name == wanted]
    answers = [(platform, probe_platform(platform)) for platform in candidates]
    usable = [platform for platform, answer in answers if answer.present]
    best = _highest(usable)
    if len(best) == 1:
        return best[0]
    lines = "; ".join(_described(platform, answer) for platform, answer in answers)
    if best:
        names = " and ".join(platform.name for platform in best)
        raise SelectionError(
            f"platforms {names} are equally good; set platform to one of them. Candidates: {lines}"
        )
    asked = f"platform={wanted!r} is not usable" if wanted else "no platform is usable"
    raise SelectionError(_joined(f"{asked}. Candidates: {lines or 'none'}", left_out()))


def _joined(error: str, further: str) -> str:
    return f"{error}. {further}" if further else error


def probe_platform(platform: Platform) -> ProbeResult:
    """Ask the platform; a probe that breaks its promise never to raise counts as absent."""
    try:
        answer = platform.probe.load()()
    except Exception as error:
        return ProbeResult(False, f"its probe failed: {type(error).__name__}: {error}")
    if not isinstance(answer, ProbeResult):
        return ProbeResult(False, f"its probe returned {type(answer).__name__}, no ProbeResult")
    return answer


def _described(platform: Platform, answer: ProbeResult) -> str:
    """One candidate with what its probe said."""
    usable = "usable" if answer.present else "not usable"
    return f"{platform.name} (priority {platform.priority}): {usable}, {answer.reason}"


@attrs.frozen
class BackendWish:
    """What a backend must serve beside the group itself."""

    platform: str
    dtype: str
    """Compute dtype by torch name."""
    features: frozenset[str] = frozenset()
    name: str | None = None
    """``attention_backend=``: this one or none."""


def choose_backend(
    backends: Iterable[AttentionBackend],
    group: KVGroup,
    wish: BackendWish,
    left_out: Callable[[], str] = _nothing,
) -> AttentionBackend:
    """The backend of highest priority that serves `group`; `left_out` as for `choose_platform`.

    Raises `SelectionError` if none does, or if several of the same highest priority do.
    """
    reasons = [(backend, _reasons(backend, group, wish)) for backend in backends]
    best = _highest([backend for backend, against in reasons if not against])
    if len(best) == 1:
        return best[0]
    lines = _candidates(reasons)
    where = f"KV group {group.index} ({_words(group)})"
    if best:
        names = " and ".join(backend.name for backend in best)
        raise SelectionError(
            f"attention backends {names} are equally good for {where}; "
            f"set attention_backend to one of them. Candidates: {lines}"
        )
    refusal = f"no attention backend serves {where}. Candidates: {lines or 'none'}"
    raise SelectionError(_joined(refusal, left_out()))


def _candidates(reasons: Iterable[tuple[AttentionBackend, Sequence[str]]]) -> str:
    return "; ".join(
        f"{backend.name} (priority {backend.priority}): {', '.join(against) or 'fits'}"
        for backend, against in reasons
    )


def choose_prompts_backend(
    backends: Iterable[AttentionBackend],
    group: KVGroup,
    wish: BackendWish,
    *,
    asked: bool = False,
) -> AttentionBackend | None:
    """The best backend for prompts only that serves `group`, None if there is none.

    Raises `SelectionError` if several are equally good, or if the one that was `asked` for by name
    does not serve.
    """
    backends = list(backends)
    if asked:
        return choose_backend(backends, group, wish)
    reasons = [(backend, _reasons(backend, group, wish)) for backend in backends]
    best = _highest([backend for backend, against in reasons if not against])
    if len(best) > 1:
        names = " and ".join(backend.name for backend in best)
        raise SelectionError(
            f"attention backends {names} are equally good for the prompts of KV group "
            f"{group.index}; set attention_backend to one of them. Candidates: "
            f"{_candidates(reasons)}"
        )
    return best[0] if best else None


def _words(group: KVGroup) -> str:
    spec = group.spec
    if isinstance(spec, RecurrentSpec):
        return f"recurrent states of mixer {spec.mixer!r}"
    return f"{spec.kind} attention, head size {spec.head_size}"


def _checks(
    backend: AttentionBackend, group: KVGroup
) -> tuple[tuple[str, object, Sequence[object]], ...]:
    """What a group has and a backend allows, of the things that matter for the group's kind."""
    spec = group.spec
    kind = ("kind", spec.kind, backend.kinds)
    if isinstance(spec, RecurrentSpec):
        if spec.kind not in backend.kinds:
            return (kind,)
        return (kind, ("mixer", spec.mixer, backend.mixers or ("none",)))
    return (
        kind,
        ("KV dtype", spec.dtype, backend.kv_dtypes),
        ("head size", spec.head_size, backend.head_sizes),
        ("block size", group.block_size, backend.block_sizes),
    )


def _reasons(backend: AttentionBackend, group: KVGroup, wish: BackendWish) -> list[str]:
    """Everything that speaks against a backend."""
    checks = (
        ("platform", wish.platform, backend.platforms),
        ("dtype", wish.dtype, backend.dtypes),
        *_checks(backend, group),
    )
    against = [
        f"{what} {value} is not among {', '.join(map(str, allowed))}"
        for what, value, allowed in checks
        if allowed and value not in allowed
    ]
    missing = sorted(wish.features - backend.features)
    if missing:
        against.append(f"lacks {', '.join(missing)}")
    if wish.name is not None and backend.name != wish.name:
        against.append(f"attention_backend={wish.name!r} asks for another")
    return against


def _highest(candidates: Sequence[_Ranked]) -> list[_Ranked]:
    most = max((candidate.priority for candidate in candidates), default=0)
    return [candidate for candidate in candidates if candidate.priority == most]
