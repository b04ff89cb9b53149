"""Reading the metadata of GGUF files of the architectures ``gemma``, ``gemma2`` and ``gemma3``. No
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.api.model import ConfigInput
from pegboard.errors import ConfigError
from pegboard.nn import ConfigReader, RopeConfig, read_rope
from pegboard_model_gemma.settings import (
    GENERATIONS,
    GemmaConfig,
    Generation,
    make_config,
    pattern_layers,
)

__all__ = ["from_gguf"]

REFUSED: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "embedding_scale": (),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (1,),
    "residual_scale": (1,),
    "rope.dimension_sections": (),
    "rope.scaling.attn_factor": (1,),
    "use_parallel_residual": (False,),
}

HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout")
HARMLESS_PREFIXES = ("general.", "imatrix.", "quantize.", "split.", "tokenizer.")

SHARED_SCALE = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose scores are scaled by the hidden size per head, not by the head size:
the format has no key for it, and those of 27 billion parameters are known by their depth."""


def from_gguf(source: ConfigInput) -> GemmaConfig:
    """Read metadata; see `pegboard_model_gemma.config.read_config` for the errors."""
    read = _Reader(ConfigReader(source.raw, "GGUF metadata"), source.architecture)
    read.keys.refuse_unless({read.key(name): values for name, values in REFUSED.items()})
    names = source.tensor_names
    layers, heads = read.integer("block_count"), read.uniform("attention.head_count")
    head_size = read.integer("attention.key_length", 256)
    rope = read.rope()
    local = read.local_layers(layers)
    config = make_config(
        generation=read.generation,
        layers=layers,
        hidden_size=read.integer("embedding_length"),
        inner_size=read.uniform("feed_forward_length"),
        heads=heads,
        kv_heads=read.uniform("attention.head_count_kv", heads),
        head_size=head_size,
        vocab_size=_vocab_size(read, source.tensor_shapes),
        max_positions=read.integer("context_length"),
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        scale=read.scale(layers, heads, head_size),
        local=local,
        window=read.window(local),
        rope=rope,
        local_rope=read.local_rope(rope),
        attention_cap=read.attention_cap(),
        logit_cap=read.logit_cap(),
        bias="blk.0.attn_q.bias" in names,
        tied="output.weight" not in names,
        facts={
            "eos_token_ids": read.keys.ids("tokenizer.ggml.eos_token_id"),
            "bos_token_id": next(iter(read.keys.ids("tokenizer.ggml.bos_token_id")), None),
            "stored_dtype": {0: "float32", 1: "float16"}.get(
                read.keys.get("general.file_type", -1), "bfloat16"
            ),
        },
    )
    for name in ("attention.value_length", "rope.dimension_count"):
        if read.integer(name, head_size) != head_size:
            key = read.key(name)
            raise read.keys.bad(key, read.keys.get(key), f"the head size {head_size}")
    read.keys.finish(frozenset(map(read.key, HARMLESS)), HARMLESS_PREFIXES)
    return config


@attrs.frozen
class _Reader:
    """Keys of one architecture."""

    keys: ConfigReader
    architecture: str

    @property
    def generation(self) -> Generation:
        return GENERATIONS[self.architecture]

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def integer(self, name: str, *default: Any, **more: Any) -> Any:
        return self.keys.integer(self.key(name), *default, **more)

    def number(self, name: str, *default: float) -> float:
        return self.keys.number(self.key(name), *default)

    def uniform(self, name: str, *default: int) -> int:
        return self.keys.uniform(self.key(name), *default)

    def attention_cap(self) -> float | None:
        """Only Gemma 2 bounds scores; models of the others ignore the key, so it must be empty."""
        name, usual = "attn_logit_softcapping", self.generation.attention_cap
        if usual is None:
            self.keys.refuse_unless({self.key(name): ()})
            return None
        return self.number(name, usual)

    def logit_cap(self) -> float | None:
        """The bound that the file has, or what is usual."""
        name = "final_logit_softcapping"
        given = self.keys.get(self.key(name))
        return self.generation.logit_cap if given is None else self.number(name)

    def scale(self, layers: int, heads: int, head_size: int) -> float:
        """Of the scores."""
        size = float(head_size)
        if SHARED_SCALE.get(self.architecture) == layers:
            size = self.integer("embedding_length") / heads
        return self.number("attention.scale", size**-0.5)

    def local_layers(self, layers: int) -> tuple[bool, ...]:
        """Which layers have a window: by number (every n-th has none) or listed."""
        key = self.key("attention.sliding_window_pattern")
        given = self.keys.get(key, self.generation.pattern)
        if not self.generation.pattern:
            self.keys.refuse_unless({key: (0, 1), self.key("attention.sliding_window"): (0,)})
            return pattern_layers(layers, 0)
        if isinstance(given, (list, tuple)):
            if len(given) != layers or not all(isinstance(item, bool) for item in given):
                raise self.keys.bad(key, given, f"a number, or true or false for {layers} layers")
            return tuple(given)
        return pattern_layers(layers, self.integer("attention.sliding_window_pattern", given))

    def window(self, local: tuple[bool, ...]) -> int | None:
        """Gemma 2 files may leave it out; 0 means that there is none."""
        if not any(local):
            self.keys.get(self.key("attention.sliding_window"))
            return None
        default = (4096,) if self.architecture == "gemma2" else ()
        return self.integer("attention.sliding_window", *default, least=0) or None

    def rope(self) -> RopeConfig:
        """Of the layers with full attention."""
        kind = self.keys.text(self.key("rope.scaling.type"), "none")
        older = self.keys.get(self.key("rope.scale_linear"), 1.0)
        factor = self.number("rope.scaling.factor", older)
        usual = 1_000_000.0 if self.generation.two_ropes else 10_000.0
        table: dict[str, Any] = {"rope_theta": self.number("rope.freq_base", usual)}
        if kind != "none":
            table |= {"rope_type": kind, "factor": factor}
        elif factor != 1.0:
            table |= {"rope_type": "linear", "factor": factor}
        return read_rope({"rope_parameters": table}, source="GGUF metadata")

    def local_rope(self, rope: RopeConfig) -> RopeConfig:
        """Of the layers with a window, which no scaling stretches where they have their own."""
        if not self.generation.two_ropes:
            return rope
        return RopeConfig(theta=self.number("rope.freq_base_swa", 10_000.0))


def _vocab_size(read: _Reader, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Stated, or else the rows of the embedding."""
    rows = shapes.get("token_embd.weight", (None,))[0]
    size = read.integer("vocab_size", rows)
    if size is None:
        raise ConfigError(f"GGUF metadata: {read.key('vocab_size')} is missing")
    return int(size)
