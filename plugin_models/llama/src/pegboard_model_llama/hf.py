"""Reading ``config.json`` of Llama, Mistral, Ministral and kin. No torch."""

from __future__ import annotations

from typing import Any

from pegboard.api.model import ConfigInput
from pegboard.errors import UnsupportedError
from pegboard.nn import (
    HF_HARMLESS,
    HF_HARMLESS_PREFIXES,
    ConfigReader,
    RopeConfig,
    read_rope,
)
from pegboard_model_llama.settings import LlamaConfig, make_config

__all__ = ["from_hf"]

REFUSED: dict[str, tuple[Any, ...]] = {
    # Keys of kin that change the computation, with the values that change nothing.
    "attention_multiplier": (),
    "attn_logit_softcapping": (0,),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (0,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "no_rope_layers": ([],),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "partial_rotary_factor": (1,),
    "pretraining_tp": (1,),
    "qk_norm": (False,),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "scale_depth": (),
    "scale_emb": (1,),
    "use_qk_norm": (False,),
}

HARMLESS = HF_HARMLESS | {"is_llama_config", "max_sequence_length"}

WINDOWED = ("MistralForCausalLM", "MinistralForCausalLM")
"""Architectures whose files mean a window even where they name none."""


def from_hf(source: ConfigInput) -> LlamaConfig:
    """Read a parsed file; see `pegboard_model_llama.config.read_config` for the errors."""
    raw = source.raw
    read = ConfigReader(raw, "config.json")
    read.refuse_unless(REFUSED)
    read.text("hidden_act", "silu", allowed=("silu", "swish"))
    heads = read.integer("num_attention_heads")
    layers = read.integer("num_hidden_layers")
    kinds = read.layer_types(layers)
    bias = read.flag("attention_bias", False)
    config = make_config(
        layers=layers,
        hidden_size=read.integer("hidden_size"),
        inner_size=read.integer("intermediate_size"),
        heads=heads,
        kv_heads=read.integer("num_key_value_heads", heads),
        head_size=read.integer("head_dim", None),
        vocab_size=read.integer("vocab_size"),
        max_positions=read.integer("max_position_embeddings", 2048),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=_single_rope(read, raw, kinds),
        windows=_windows(read, source.architecture, layers, kinds),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=read.flag("mlp_bias", False),
        tied=read.flag("tie_word_embeddings", False),
        facts={
            "eos_token_ids": read.ids("eos_token_id"),
            "bos_token_id": next(iter(read.ids("bos_token_id")), None),
            "stored_dtype": read.dtype(),
        },
    )
    read.finish(HARMLESS, HF_HARMLESS_PREFIXES)
    return config


def _single_rope(read: ConfigReader, raw: Any, kinds: list[str] | None) -> RopeConfig:
    """The rope settings, which must be the same for all layer types that occur."""
    ropes = {read_rope(raw, layer_type=kind) for kind in kinds or ["full_attention"]}
    if any(rope.partial != 1 for rope in ropes):
        raise UnsupportedError("config.json: partial_rotary_factor other than 1 is not supported")
    if len(ropes) != 1:
        raise read.bad("rope_parameters", raw.get("rope_parameters"), "equal for all layers")
    return ropes.pop()


def _windows(
    read: ConfigReader, architecture: str, layers: int, kinds: list[str] | None
) -> list[int | None]:
    """The sliding window of each layer: of those that `kinds` names, else of all."""
    # A Mistral file that leaves the key out means the 4096 of the first Mistral; null means none.
    implied = 4096 if architecture in WINDOWED and not read.has("sliding_window") else None
    used = read.flag("use_sliding_window", True)
    window = read.integer("sliding_window", implied)
    if not used:
        read.get("max_window_layers")
        return [None] * layers
    if kinds is None:
        if window is not None:  # which end of the model the key counts from is told in two ways
            read.refuse_unless({"max_window_layers": ()})
        return [window] * layers
    read.get("max_window_layers")
    if window is None and "sliding_attention" in kinds:
        raise read.bad("sliding_window", None, "a length, as layer_types has sliding_attention")
    return [window if kind == "sliding_attention" else None for kind in kinds]
