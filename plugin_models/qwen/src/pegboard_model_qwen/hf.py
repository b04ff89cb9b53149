"""Reading ``config.json`` of Qwen2, Qwen2.5 and Qwen3, dense and mixtures. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from pegboard.api.model import ConfigInput
from pegboard.nn import (
    HF_HARMLESS,
    HF_HARMLESS_PREFIXES,
    ConfigReader,
    RopeConfig,
    read_rope,
)
from pegboard_model_qwen.mixture import hf_mixture
from pegboard_model_qwen.settings import QwenConfig, make_config

__all__ = ["from_hf"]

REFUSED: dict[str, tuple[Any, ...]] = {
    # Keys of kin that change the computation, with the values that change nothing.
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1,),
    "use_mrope": (False,),
    "vision_config": (),
}

HARMLESS = HF_HARMLESS | {"router_aux_loss_coef"}


@attrs.frozen
class Architecture:
    """What the name of an architecture says without a key for it."""

    qk_norm: bool = False
    head_size: int | None = None
    """Where the file has none; None: the hidden size shared out among the heads."""
    mixture: bool = False
    shared_expert: bool = False
    windows: Literal["from", "alternate", "all"] = "from"
    """Which layers have a window where they are not listed: those from ``max_window_layers`` on,
    every other one of those before it, or all."""

    def windowed(self, layer: int, border: int) -> bool:
        """Whether `layer` has a window; `border` is ``max_window_layers``."""
        if self.windows == "alternate":
            return layer % 2 == 0 and layer < border
        return self.windows == "all" or layer >= border


ARCHITECTURES = {
    "Qwen2ForCausalLM": Architecture(),
    "Qwen2MoeForCausalLM": Architecture(mixture=True, shared_expert=True, windows="alternate"),
    "Qwen3ForCausalLM": Architecture(qk_norm=True, head_size=128),
    "Qwen3MoeForCausalLM": Architecture(qk_norm=True, mixture=True, windows="all"),
}


def from_hf(source: ConfigInput) -> QwenConfig:
    """Read a parsed file; see `pegboard_model_qwen.config.read_config` for the errors."""
    raw, architecture = source.raw, ARCHITECTURES[source.architecture]
    read = ConfigReader(raw, "config.json")
    read.refuse_unless(REFUSED)
    read.text("hidden_act", "silu", allowed=("silu", "swish"))
    layers, heads = read.integer("num_hidden_layers"), read.integer("num_attention_heads")
    kinds = read.layer_types(layers)
    qkv_bias, output_bias = _biases(read, architecture)
    mixture, sparse = hf_mixture(
        read, layers, mixture=architecture.mixture, shared=architecture.shared_expert
    )
    config = make_config(
        layers=layers,
        hidden_size=read.integer("hidden_size"),
        inner_size=read.integer("intermediate_size"),
        heads=heads,
        kv_heads=_kv_heads(read, heads),
        head_size=read.integer("head_dim", architecture.head_size),
        vocab_size=read.integer("vocab_size"),
        max_positions=read.integer("max_position_embeddings", 32768),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=_single_rope(read, raw, kinds),
        windows=_windows(read, architecture, layers, kinds),
        qk_norm=architecture.qk_norm,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        tied=read.flag("tie_word_embeddings", False),
        mixture=mixture,
        sparse=sparse,
        facts={
            "eos_token_ids": read.ids("eos_token_id"),
            "bos_token_id": next(iter(read.ids("bos_token_id")), None),
            "stored_dtype": read.dtype(),
            "position_limit": _position_limit(read),
        },
    )
    read.finish(HARMLESS, HF_HARMLESS_PREFIXES)
    return config


def _biases(read: ConfigReader, architecture: Architecture) -> tuple[bool, bool]:
    """On q, k and v, and after attention: dense Qwen2 files have no key for them."""
    if not architecture.qk_norm:
        return (read.flag("qkv_bias", True) if architecture.mixture else True), False
    both = read.flag("attention_bias", False)
    return both, both


def _kv_heads(read: ConfigReader, heads: int) -> int:
    """As many as there are heads where the file says null; a missing key would be a guess."""
    default = (heads,) if read.has("num_key_value_heads") else ()
    return int(read.integer("num_key_value_heads", *default))


def _single_rope(read: ConfigReader, raw: Mapping[str, Any], kinds: list[str] | None) -> RopeConfig:
    """The rope settings, which must be the same for all layer types that occur."""
    ropes = {read_rope(raw, layer_type=kind) for kind in kinds or ["full_attention"]}
    if any(rope.partial != 1 for rope in ropes):
        raise read.bad("rope_parameters", raw.get("rope_parameters"), "partial_rotary_factor 1")
    if len(ropes) != 1:
        raise read.bad("rope_parameters", raw.get("rope_parameters"), "equal for all layers")
    return ropes.pop()


def _windows(
    read: ConfigReader, architecture: Architecture, layers: int, kinds: list[str] | None
) -> list[int | None]:
    """The sliding window of each layer: of those that `kinds` names, else of those that the
    architecture means. Without ``use_sliding_window`` the other keys mean nothing."""
    border = read.integer("max_window_layers", 28, least=0)
    if not read.flag("use_sliding_window", False):
        read.get("sliding_window")
        if kinds is not None and "sliding_attention" in kinds:
            raise read.bad(
                "use_sliding_window", False, "true, as layer_types has sliding_attention"
            )
        return [None] * layers
    window = read.integer("sliding_window", None if read.has("sliding_window") else 4096)
    if architecture.windows == "all":  # the reference looks at no key that would say which
        read.refuse_unless({"max_window_layers": (0,), "layer_types": ()})
    if kinds is None:
        return [window if architecture.windowed(layer, border) else None for layer in range(layers)]
    if window is None and "sliding_attention" in kinds:
        raise read.bad("sliding_window", None, "a length, as layer_types has sliding_attention")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _position_limit(read: ConfigReader) -> tuple[int, str] | None:
    """Files for a million tokens attend in chunks beyond the length that they were trained for."""
    key = "dual_chunk_attention_config"
    settings = read.get(key)
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise read.bad(key, settings, "a mapping or null")
    length = ConfigReader(settings, f"config.json: {key}").integer(
        "original_max_position_embeddings"
    )
    return length, "dual chunk attention is not built"
