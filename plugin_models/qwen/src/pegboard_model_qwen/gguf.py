"""Reading the metadata of GGUF files of the architectures ``qwen2``, ``qwen3`` and ``qwen3moe``. No
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.api.model import ConfigInput
from pegboard.errors import ConfigError
from pegboard.nn import ConfigReader, RopeConfig, read_rope
from pegboard_model_qwen.settings import Mixture, QwenConfig, make_config

__all__ = ["from_gguf"]

REFUSED: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.scale": (),
    "attention.sliding_window": (0,),
    "attention.sliding_window_pattern": (),
    "attn_logit_softcapping": (),
    "embedding_scale": (1,),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "residual_scale": (1,),
    "rope.dimension_sections": (),
    "rope.scaling.attn_factor": (1,),
    "use_parallel_residual": (False,),
}
REFUSED_DENSE: dict[str, tuple[Any, ...]] = {"expert_count": (0,), "expert_used_count": (0,)}
REFUSED_MIXTURE: dict[str, tuple[Any, ...]] = {
    "expert_gating_func": (1,),
    "expert_group_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_weights_scale": (1,),
}

HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout")
HARMLESS_PREFIXES = ("general.", "imatrix.", "quantize.", "split.", "tokenizer.")


def from_gguf(source: ConfigInput) -> QwenConfig:
    """Read metadata; see `pegboard_model_qwen.config.read_config` for the errors."""
    read = _Reader(ConfigReader(source.raw, "GGUF metadata"), source.architecture)
    read.refuse_unless(REFUSED)
    names = source.tensor_names
    layers, heads = read.integer("block_count"), read.uniform("attention.head_count")
    config = make_config(
        layers=layers,
        hidden_size=read.integer("embedding_length"),
        inner_size=read.uniform("feed_forward_length"),
        heads=heads,
        kv_heads=read.uniform("attention.head_count_kv", heads),
        head_size=read.integer("attention.key_length", None),
        vocab_size=_vocab_size(read, source.tensor_shapes),
        max_positions=read.integer("context_length"),
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        rope=read.rope(),
        windows=[None] * layers,
        qk_norm=source.architecture.startswith("qwen3"),
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        tied="output.weight" not in names,
        mixture=read.mixture(),
        sparse=tuple(f"blk.{layer}.ffn_gate_inp.weight" in names for layer in range(layers)),
        facts={
            "eos_token_ids": read.keys.ids("tokenizer.ggml.eos_token_id"),
            "bos_token_id": next(iter(read.keys.ids("tokenizer.ggml.bos_token_id")), None),
            "stored_dtype": _stored_dtype(read.keys),
        },
    )
    read.check_head_size(config.head_size)
    read.keys.finish(frozenset(map(read.key, HARMLESS)), HARMLESS_PREFIXES)
    return config


@attrs.frozen
class _Reader:
    """Keys of one architecture."""

    keys: ConfigReader
    architecture: str

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def integer(self, name: str, *default: Any, **more: Any) -> Any:
        return self.keys.integer(self.key(name), *default, **more)

    def number(self, name: str, *default: float) -> float:
        return self.keys.number(self.key(name), *default)

    def uniform(self, name: str, *default: int) -> int:
        return self.keys.uniform(self.key(name), *default)

    def refuse_unless(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        self.keys.refuse_unless({self.key(name): values for name, values in neutral.items()})

    def mixture(self) -> Mixture | None:
        """Weights of chosen experts are renormalised where the file does not say."""
        if not self.architecture.endswith("moe"):
            self.refuse_unless(REFUSED_DENSE)
            return None
        self.refuse_unless(REFUSED_MIXTURE)
        return Mixture(
            experts=self.integer("expert_count"),
            top_k=self.integer("expert_used_count"),
            inner_size=self.integer("expert_feed_forward_length"),
            renormalise=self.keys.flag(self.key("expert_weights_norm"), True),
        )

    def rope(self) -> RopeConfig:
        kind = self.keys.text(self.key("rope.scaling.type"), "none")
        older = self.keys.get(self.key("rope.scale_linear"), 1.0)
        factor = self.number("rope.scaling.factor", older)
        table: dict[str, Any] = {"rope_theta": self.number("rope.freq_base", 10_000.0)}
        if kind != "none":
            table |= {"rope_type": kind, "factor": factor}
        elif factor != 1.0:
            table |= {"rope_type": "linear", "factor": factor}
        return read_rope({"rope_parameters": table}, source="GGUF metadata")

    def check_head_size(self, head_size: int) -> None:
        for name in ("attention.value_length", "rope.dimension_count"):
            if self.integer(name, head_size) != head_size:
                key = self.key(name)
                raise self.keys.bad(key, self.keys.get(key), f"the head size {head_size}")


def _vocab_size(read: _Reader, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Stated, or else the rows of the embedding."""
    rows = shapes.get("token_embd.weight", (None,))[0]
    size = read.integer("vocab_size", rows)
    if size is None:
        raise ConfigError(f"GGUF metadata: {read.key('vocab_size')} is missing")
    return int(size)


def _stored_dtype(keys: ConfigReader) -> str:
    """Of a plain file; one of quantised weights names none and goes with bfloat16."""
    return {0: "float32", 1: "float16"}.get(keys.get("general.file_type", -1), "bfloat16")
