"""Configuration and tensor names, of GGUF files and of small ones for the tests. No torch."""

import attrs

from pegboard.api.kv import FullAttentionSpec, KVSlot
from pegboard.api.model import ConfigInput, ModelFacts, WeightMap, WeightRule
from pegboard.nn import ConfigReader

GGUF_KEYS = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "vocab_size": "llama.vocab_size",
    "max_position_embeddings": "llama.context_length",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
}
NUMBERS, END = ("rms_norm_eps", "rope_theta"), "eos_token_id"
LAYER = (
    # name in GGUF files, name in the tests' files, target, part
    ("attn_norm", "norm1", "norm1", 0),
    ("attn_q", "q", "attention.qkv", 0),
    ("attn_k", "k", "attention.qkv", 1),
    ("attn_v", "v", "attention.qkv", 2),
    ("attn_output", "o", "attention.out", 0),
    ("ffn_norm", "norm2", "norm2", 0),
    ("ffn_gate", "gate", "mlp.gate_up", 0),
    ("ffn_up", "up", "mlp.gate_up", 1),
    ("ffn_down", "down", "mlp.down", 0),
)


@attrs.frozen(kw_only=True)
class MapleConfig:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    eos_token_id: int | None
    rms_norm_eps: float
    rope_theta: float
    tied: bool

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def facts(self) -> ModelFacts:
        spec = FullAttentionSpec(self.num_key_value_heads, self.head_size, dtype="auto")
        return ModelFacts(
            layers=self.num_hidden_layers,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            max_positions=self.max_position_embeddings,
            kv_slots=tuple(KVSlot(i, "self", spec) for i in range(self.num_hidden_layers)),
            eos_token_ids=() if self.eos_token_id is None else (self.eos_token_id,),
        )


@attrs.frozen
class Apart:
    """GGUF files keep the two rows that turn together side by side, here they are apart."""

    head_size: int

    def index(self, rows: int) -> list[int]:
        heads = [range(start, start + self.head_size) for start in range(0, rows, self.head_size)]
        return [row for head in heads for row in (*head[::2], *head[1::2])]


def read_config(source: ConfigInput) -> MapleConfig:
    gguf = source.kind == "gguf"
    read = ConfigReader(source.raw, "GGUF metadata" if gguf else "config.json")
    sizes = [name for name in GGUF_KEYS if name not in (*NUMBERS, END)]
    values = {name: read.integer(GGUF_KEYS[name] if gguf else name) for name in sizes}
    values |= {name: read.number(GGUF_KEYS[name] if gguf else name) for name in NUMBERS}
    values[END] = read.integer(GGUF_KEYS[END] if gguf else END, None, least=0)
    tied = "output.weight" not in source.tensor_names if gguf else read.flag("tied")
    harmless = {"architectures", "model_type", "llama.rope.dimension_count"}
    read.finish(harmless, ("general.", "quantize.", "tokenizer.") if gguf else ())
    return MapleConfig(tied=tied, **values)


def weight_map(config: MapleConfig, kind: str) -> WeightMap:
    gguf = kind == "gguf"
    turned = Apart(config.head_size) if gguf else None
    rules = [
        WeightRule(
            f"blk.{{i}}.{stored}" if gguf else f"layers.{{i}}.{short}",
            f"layers.{{i}}.{target}",
            part,
            turned if short in ("q", "k") else None,
        )
        for stored, short, target, part in LAYER
    ]
    ends = {"embed": "token_embd", "norm": "output_norm"}
    if not config.tied:
        ends["head"] = "output"
    rules += [WeightRule(stored if gguf else name, name) for name, stored in ends.items()]
    return WeightMap(tuple(rules))
