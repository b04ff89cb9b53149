"""Reading the metadata of GGUF files of the architecture ``llama``. No torch."""

from __future__ import annotations

from typing import Any

from pegboard.api.model import ConfigInput
from pegboard.errors import ConfigError
from pegboard.nn import ConfigReader, RopeConfig, read_rope
from pegboard_model_llama.settings import LlamaConfig, make_config

__all__ = ["from_gguf"]

REFUSED: dict[str, tuple[Any, ...]] = {
    "llama.attention.causal": (True,),
    "llama.attention.clamp_kqv": (0,),
    "llama.attention.scale": (),
    "llama.attention.sliding_window_pattern": (),
    "llama.embedding_scale": (1,),
    "llama.expert_count": (0,),
    "llama.expert_used_count": (0,),
    "llama.logit_scale": (1,),
    "llama.residual_scale": (1,),
    "llama.rope.dimension_sections": (),
    "llama.rope.scaling.attn_factor": (1,),
    "llama.use_parallel_residual": (False,),
}

HARMLESS = frozenset(
    {
        "llama.rope.scaling.finetuned",
        "llama.rope.scaling.original_context_length",
        "llama.tensor_data_layout",
    }
)
HARMLESS_PREFIXES = ("general.", "imatrix.", "quantize.", "split.", "tokenizer.")


def from_gguf(source: ConfigInput) -> LlamaConfig:
    """Read metadata; see `pegboard_model_llama.config.read_config` for the errors."""
    read = ConfigReader(source.raw, "GGUF metadata")
    read.refuse_unless(REFUSED)
    names = source.tensor_names
    layers = read.integer("llama.block_count")
    heads = read.uniform("llama.attention.head_count")
    head_size = read.integer("llama.attention.key_length", None)
    config = make_config(
        layers=layers,
        hidden_size=read.integer("llama.embedding_length"),
        inner_size=read.uniform("llama.feed_forward_length"),
        heads=heads,
        kv_heads=read.uniform("llama.attention.head_count_kv", heads),
        head_size=head_size,
        vocab_size=_gguf_vocab_size(read, source),
        max_positions=read.integer("llama.context_length"),
        norm_eps=read.number("llama.attention.layer_norm_rms_epsilon"),
        rope=_gguf_rope(read),
        windows=[read.integer("llama.attention.sliding_window", 0, least=0) or None] * layers,
        rope_factors="rope_freqs.weight" in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_down.bias" in names,
        tied="output.weight" not in names,
        facts={
            "eos_token_ids": read.ids("tokenizer.ggml.eos_token_id"),
            "bos_token_id": next(iter(read.ids("tokenizer.ggml.bos_token_id")), None),
            "stored_dtype": _gguf_dtype(read),
        },
    )
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if read.integer(key, config.head_size) != config.head_size:
            raise read.bad(key, read.get(key), f"the head size {config.head_size}")
    read.finish(HARMLESS, HARMLESS_PREFIXES)
    return config


def _gguf_vocab_size(read: ConfigReader, source: ConfigInput) -> int:
    """Stated, or else the rows of the embedding: files of 2023 state it nowhere."""
    rows = source.tensor_shapes.get("token_embd.weight", (None,))[0]
    size = read.integer("llama.vocab_size", rows)
    if size is None:
        raise ConfigError("GGUF metadata: llama.vocab_size is missing")
    return int(size)


def _gguf_rope(read: ConfigReader) -> RopeConfig:
    kind = read.text("llama.rope.scaling.type", "none")
    factor = read.number("llama.rope.scaling.factor", read.get("llama.rope.scale_linear", 1.0))
    table: dict[str, Any] = {"rope_theta": read.number("llama.rope.freq_base", 10_000.0)}
    if kind != "none":
        table |= {"rope_type": kind, "factor": factor}
    elif factor != 1.0:
        table |= {"rope_type": "linear", "factor": factor}
    return read_rope({"rope_parameters": table}, source="GGUF metadata")


def _gguf_dtype(read: ConfigReader) -> str:
    """Dtype of a plain file; one of quantised weights names none and goes with bfloat16."""
    return {0: "float32", 1: "float16"}.get(read.get("general.file_type", -1), "bfloat16")
