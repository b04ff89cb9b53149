"""Reading ``config.json`` of Gemma 1, 2 and 3. No torch."""

from __future__ import annotations

from collections.abc import Mapping
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
from pegboard_model_gemma.settings import (
    GENERATIONS,
    GemmaConfig,
    Generation,
    make_config,
    pattern_layers,
)

__all__ = ["from_hf"]

ARCHITECTURES = {
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}
WRAPPERS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""Models with an image encoder, and the architecture of their text part alone."""

REFUSED: dict[str, tuple[Any, ...]] = {
    "use_bidirectional_attention": (False,),
    "partial_rotary_factor": (1,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "vision_config": (),
}

HARMLESS = HF_HARMLESS | {"cache_implementation"}

GLOBAL_THETA = 1_000_000.0
"""Of Gemma 3's layers with full attention, where the file does not say."""


def from_hf(source: ConfigInput) -> GemmaConfig:
    """Read a parsed file; see `pegboard_model_gemma.config.read_config` for the errors."""
    raw = source.raw
    generation = GENERATIONS[_generation(source.architecture)]
    read = ConfigReader(raw, "config.json")
    read.refuse_unless(REFUSED)
    _check_activation(read)
    layers, heads = read.integer("num_hidden_layers"), read.integer("num_attention_heads")
    head_size = read.integer("head_dim", 256)
    _refuse_what_came_later(read, head_size, generation)
    local = _local_layers(read, layers, generation)
    rope, local_rope = _ropes(read, raw, generation, local)
    config = make_config(
        generation=generation,
        layers=layers,
        hidden_size=read.integer("hidden_size"),
        inner_size=read.integer("intermediate_size"),
        heads=heads,
        kv_heads=read.integer("num_key_value_heads", heads),
        head_size=head_size,
        vocab_size=read.integer("vocab_size"),
        max_positions=read.integer("max_position_embeddings", 8192),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        scale=_scale(read, head_size, generation),
        local=local,
        window=_window(read, local),
        rope=rope,
        local_rope=local_rope,
        attention_cap=_cap(read, "attn_logit_softcapping", generation.attention_cap),
        logit_cap=_cap(read, "final_logit_softcapping", generation.logit_cap),
        bias=read.flag("attention_bias", False),
        tied=read.flag("tie_word_embeddings", True),
        facts={
            "eos_token_ids": read.ids("eos_token_id"),
            "bos_token_id": next(iter(read.ids("bos_token_id")), None),
            "stored_dtype": read.dtype(),
        },
    )
    read.finish(HARMLESS, HF_HARMLESS_PREFIXES)
    return config


def _generation(architecture: str) -> str:
    if architecture in WRAPPERS:
        raise UnsupportedError(
            f"config.json: architecture {architecture} has an image encoder, which is not "
            f"supported yet; a checkpoint of its text part alone ({WRAPPERS[architecture]}) is"
        )
    return ARCHITECTURES[architecture]


def _check_activation(read: ConfigReader) -> None:
    """The tanh form of GELU; files of the first Gemma call it ``gelu`` under the older key."""
    read.text("hidden_activation", "gelu_pytorch_tanh", allowed=("gelu_pytorch_tanh",))
    read.text("hidden_act", "gelu_pytorch_tanh", allowed=("gelu", "gelu_pytorch_tanh"))


def _refuse_what_came_later(read: ConfigReader, head_size: int, generation: Generation) -> None:
    """Keys that only later generations act on may say nothing else than an earlier one does."""
    if generation.attention_cap is None:
        read.refuse_unless({"attn_logit_softcapping": ()})
    if not generation.pattern:
        foreign = ("final_logit_softcapping", "sliding_window", "sliding_window_pattern")
        read.refuse_unless(dict.fromkeys(foreign, ()))
        read.refuse_unless({"query_pre_attn_scalar": (head_size,)})


def _local_layers(read: ConfigReader, layers: int, generation: Generation) -> tuple[bool, ...]:
    """Which layers have a window: as listed, or by the pattern of the file or the generation."""
    pattern = read.integer("sliding_window_pattern", generation.pattern or None)
    if not generation.pattern:
        read.refuse_unless({"layer_types": (["full_attention"] * layers,)})
        return pattern_layers(layers, 0)
    kinds = read.layer_types(layers)
    if kinds is None:
        return pattern_layers(layers, pattern)
    return tuple(kind == "sliding_attention" for kind in kinds)


def _window(read: ConfigReader, local: tuple[bool, ...]) -> int | None:
    """Files leave the key out where it is 4096, and write null where there is no window."""
    window: int | None = read.integer(
        "sliding_window", None if read.has("sliding_window") else 4096
    )
    return window if any(local) else None


def _scale(read: ConfigReader, head_size: int, generation: Generation) -> float:
    usual = 256.0 if generation.pattern else float(head_size)
    scale: float = read.number("query_pre_attn_scalar", usual) ** -0.5
    return scale


def _cap(read: ConfigReader, key: str, usual: float | None) -> float | None:
    """A bound; null means that there is none, a missing key what is usual."""
    if read.get(key) is None:
        return None if read.has(key) else usual
    return read.number(key)


def _ropes(
    read: ConfigReader, raw: Mapping[str, Any], generation: Generation, local: tuple[bool, ...]
) -> tuple[RopeConfig, RopeConfig]:
    """Rope of layers with full attention, and of those with a window."""
    if not generation.two_ropes:
        kinds = {("full_attention", "sliding_attention")[is_local] for is_local in local}
        found = {kind: read_rope(raw, layer_type=kind) for kind in kinds}
        first = next(iter(found.values()))
        return found.get("full_attention", first), found.get("sliding_attention", first)
    nested = raw.get("rope_parameters")
    if nested and not (isinstance(nested, Mapping) and "full_attention" in nested):
        raise read.bad(
            "rope_parameters", nested, "one mapping for full_attention, one for sliding_attention"
        )
    # The keys beside the mapping are those of full attention; only this one is of the windows.
    own: dict[str, Any] = {"rope_theta": read.number("rope_local_base_freq", 10_000.0)}
    if nested:
        own["rope_parameters"] = nested
    return (
        read_rope(raw, default_theta=GLOBAL_THETA, layer_type="full_attention"),
        read_rope(own, layer_type="sliding_attention"),
    )
