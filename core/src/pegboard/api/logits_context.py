"""What a logits processor is told of the model that it serves. Part of `pegboard.api.logits`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    import torch

    from pegboard.api.params import SamplingParams
    from pegboard.api.tokenizer import TextTokenizer

__all__ = ["LogitsContext", "LogitsRequest"]


def _no_tokenizer() -> TextTokenizer | None:
    return None


@attrs.frozen
class LogitsRequest:
    """What a request asks of a processor, before it is queued."""

    arguments: Mapping[str, Any]
    """Its entries of ``extra_args``, plain values; empty if only ``logits_processors`` names it."""
    params: SamplingParams
    vocab_size: int
    """Logits of a row: every token id is below this."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's ends of sequence, whatever the request says of them."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    _open_tokenizer: Callable[[], TextTokenizer | None] = attrs.field(
        default=_no_tokenizer, eq=False, repr=False
    )

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokeniser of the model, which encodes and decodes without torch; None where the
        engine has none (``skip_tokenizer_init``)."""
        return self._open_tokenizer()


@attrs.frozen
class LogitsContext:
    """What a processor is built with."""

    vocab_size: int
    """Logits of a row: every token id is below this."""
    device: torch.device
    max_rows: int
    """Slots are below this."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's ends of sequence; those of one request are `LogitsRow.end_ids`."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""
    _open_tokenizer: Callable[[], TextTokenizer | None] = attrs.field(
        default=_no_tokenizer, eq=False, repr=False
    )

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokeniser of the model; None where the engine has none. Made when it is first asked
        for, once in each process, which may take a second: ask in the constructor, or when the
        first request needs it, never in `Rows.apply`."""
        return self._open_tokenizer()
