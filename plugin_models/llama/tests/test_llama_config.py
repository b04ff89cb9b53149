"""What the Llama family reads from configuration files, and what it refuses (O33)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import pegboard_model_llama
from pegboard.api.model import ConfigInput
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_model_llama.config import read_config
from pegboard_model_llama.weights import NeighbourPairs
from pegboard_testkit.config_kit import ConfigKit, windows

HF: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
SCALED = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "something",
    "llama.block_count": 3,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 100,
    "tokenizer.ggml.eos_token_id": 2,
}


def gguf(changes: dict[str, Any], names: tuple[str, ...] = ("output.weight",), **more: Any) -> Any:
    return read_config(ConfigInput(GGUF | changes, "gguf", "llama", frozenset(names), **more))


def test_o33_old_and_new_rope_keys_mean_the_same(read_hf: Any) -> None:
    forms = [
        {"rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", **SCALED}},
        {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **SCALED}},
        {"rope_parameters": {"rope_theta": 500000, "rope_type": "llama3", **SCALED}},
        {"rope_theta": 500000, "rope_parameters": {"rope_type": "llama3", **SCALED}},
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 500000, "rope_type": "llama3", **SCALED}
            }
        },
    ]
    ropes = {read_hf(HF | form).rope for form in forms}
    assert len(ropes) == 1
    (rope,) = ropes
    assert (rope.theta, rope.kind, rope.factor) == (500000.0, "llama3", 8.0)
    assert rope.original_max_positions == 64


@pytest.mark.parametrize("form", [{}, {"rope_scaling": None}, {"rope_parameters": None}])
def test_o33_no_rope_settings_mean_the_default(read_hf: Any, form: dict[str, Any]) -> None:
    rope = read_hf(HF | form).rope
    assert (rope.kind, rope.theta) == ("default", 10000.0)


def test_o33_an_unknown_rope_type_is_an_error(read_hf: Any) -> None:
    with pytest.raises(ConfigError, match="rope_type='spiral'"):
        read_hf(HF | {"rope_scaling": {"type": "spiral", "factor": 2.0}})
    with pytest.raises(UnsupportedError, match="'yarn' is not supported"):
        read_hf(HF | {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}})


def test_o33_layer_types_with_different_ropes_are_refused(read_hf: Any) -> None:
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(ConfigError, match="rope_parameters"):
        read_hf(HF | {"rope_parameters": nested, "layer_types": kinds})


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_o33_both_names_of_the_dtype_are_read(read_hf: Any, key: str) -> None:
    assert read_hf(HF | {key: "bfloat16"}).facts.stored_dtype == "bfloat16"
    with pytest.raises(ConfigError, match="dtype='int3'"):
        read_hf(HF | {key: "int3"})


def test_o33_head_size_is_derived_or_given(read_hf: Any) -> None:
    assert read_hf(HF).head_size == 16
    assert read_hf(HF | {"head_dim": None}).head_size == 16
    assert read_hf(HF | {"head_dim": 24}).head_size == 24
    with pytest.raises(ConfigError, match="hidden size 66"):
        read_hf(HF | {"hidden_size": 66})


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("keys", "architecture", "expected"),
    [
        ({}, "LlamaForCausalLM", [None] * 3),
        ({"sliding_window": 128}, "LlamaForCausalLM", [128] * 3),
        ({"sliding_window": None}, "MistralForCausalLM", [None] * 3),
        ({"sliding_window": 128}, "MistralForCausalLM", [128] * 3),
        ({"sliding_window": 128, "use_sliding_window": False}, "MistralForCausalLM", [None] * 3),
        ({}, "MistralForCausalLM", [4096] * 3),
        ({}, "MinistralForCausalLM", [4096] * 3),
        (
            {"sliding_window": 8, "layer_types": [SLIDING, FULL, SLIDING]},
            "MinistralForCausalLM",
            [8, None, 8],
        ),
        ({"sliding_window": 8, "layer_types": [FULL] * 3}, "LlamaForCausalLM", [None] * 3),
    ],
)
def test_o33_every_layer_has_the_window_that_the_file_gives_it(
    read_hf: Any, keys: dict[str, Any], architecture: str, expected: list[int | None]
) -> None:
    assert windows(read_hf(HF | keys, architecture)) == expected


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        ({"layer_types": [SLIDING] * 3}, ConfigError, "sliding_window=None"),
        ({"layer_types": [FULL] * 2}, ConfigError, "a list of 3 times"),
        ({"layer_types": [{}] * 3}, ConfigError, "a list of 3 times"),
        ({"layer_types": [[]] * 3}, ConfigError, "a list of 3 times"),
        ({"sliding_window": 8, "max_window_layers": 2}, UnsupportedError, "max_window_layers=2"),
        ({"sliding_window": 0}, ConfigError, "sliding_window=0"),
    ],
)
def test_windows_that_are_not_clear_are_refused(
    read_hf: Any, keys: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        read_hf(HF | keys)


@pytest.mark.parametrize(("given", "ids"), [(2, (2,)), ([2, 5, 2], (2, 5)), (None, ()), (-1, ())])
def test_o33_end_ids_may_be_one_or_several(read_hf: Any, given: Any, ids: tuple[int, ...]) -> None:
    assert read_hf(HF | {"eos_token_id": given}).facts.eos_token_ids == ids


def test_the_facts_say_what_the_cache_must_hold(read_hf: Any) -> None:
    facts = read_hf(HF).facts
    assert [slot.key for slot in facts.kv_slots] == ["0.attention", "1.attention", "2.attention"]
    spec = facts.kv_slots[0].spec
    assert (spec.kv_heads, spec.head_size, spec.dtype) == (2, 16, "auto")
    assert (facts.layers, facts.vocab_size, facts.max_positions) == (3, 100, 256)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_multiplier", 0.5),
        ("logits_scaling", 8.0),
        ("residual_multiplier", 0.2),
        ("embedding_multiplier", 12),
        ("partial_rotary_factor", 0.5),
        ("pretraining_tp", 2),
        ("num_local_experts", 8),
        ("rope_interleaved", True),
        ("no_rope_layers", [0, 1, 1]),
        ("rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ],
)
def test_keys_that_change_the_computation_are_refused_by_name(
    read_hf: Any, key: str, value: Any
) -> None:
    with pytest.raises(
        UnsupportedError, match="partial_rotary" if isinstance(value, dict) else key
    ):
        read_hf(HF | {key: value})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", None, "hidden_size is missing"),
        ("hidden_size", 0, "hidden_size=0"),
        ("num_hidden_layers", "3", "num_hidden_layers='3'"),
        ("num_key_value_heads", 3, "4 attention heads are not a multiple of 3"),
        ("head_dim", 15, "head size 15 is odd"),
        ("rms_norm_eps", -1, "rms_norm_eps=-1"),
        ("hidden_act", "gelu", "hidden_act='gelu'"),
        ("attention_bias", "yes", "attention_bias='yes'"),
        ("layer_types", ["linear_attention"], "layer_types"),
        ("eos_token_id", "2", "eos_token_id='2'"),
    ],
)
def test_bad_values_are_refused_by_name(read_hf: Any, key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_hf(HF | {key: value})


def test_gguf_metadata_gives_the_same_sizes_as_a_config_file(read_hf: Any) -> None:
    ours, theirs = gguf({}), read_hf(HF | {"eos_token_id": 2})
    for name in ("layers", "hidden_size", "inner_size", "heads", "kv_heads", "head_size", "rope"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.facts.eos_token_ids == (2,)


def test_gguf_says_some_things_by_the_presence_of_tensors() -> None:
    plain = gguf({})
    assert not (plain.tied or plain.rope_factors or plain.qkv_bias or plain.mlp_bias)
    full = gguf({}, ("rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_down.bias"))
    assert full.tied
    assert full.rope_factors
    assert full.qkv_bias
    assert full.mlp_bias


def test_gguf_vocabulary_size_may_come_from_the_embedding() -> None:
    shapes = {"token_embd.weight": (321, 64)}
    assert gguf({"llama.vocab_size": None}, tensor_shapes=shapes).vocab_size == 321
    with pytest.raises(ConfigError, match=r"llama\.vocab_size is missing"):
        gguf({"llama.vocab_size": None})


@pytest.mark.parametrize(
    ("changes", "kind", "factor"),
    [
        ({"llama.rope.scaling.type": "none"}, "default", 1.0),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, "linear", 4.0),
        ({"llama.rope.scale_linear": 2.0}, "linear", 2.0),
    ],
)
def test_gguf_rope_scaling_is_read(changes: dict[str, Any], kind: str, factor: float) -> None:
    rope = gguf(changes).rope
    assert (rope.kind, rope.factor) == (kind, factor)


def test_gguf_sizes_written_per_layer_must_agree() -> None:
    assert gguf({"llama.attention.head_count_kv": [2, 2, 2]}).kv_heads == 2
    with pytest.raises(ConfigError, match=r"head_count_kv=\[2, 4, 2\]"):
        gguf({"llama.attention.head_count_kv": [2, 4, 2]})


def test_a_gguf_sliding_window_is_that_of_every_layer() -> None:
    assert windows(gguf({"llama.attention.sliding_window": 64})) == [64] * 3
    assert windows(gguf({"llama.attention.sliding_window": 0})) == [None] * 3
    with pytest.raises(UnsupportedError, match="sliding_window_pattern=2"):
        gguf({"llama.attention.sliding_window": 64, "llama.attention.sliding_window_pattern": 2})


@pytest.mark.parametrize(("file_type", "dtype"), [(0, "float32"), (1, "float16"), (3, "bfloat16")])
def test_gguf_file_type_gives_the_dtype(file_type: int, dtype: str) -> None:
    assert gguf({"general.file_type": file_type}).facts.stored_dtype == dtype


def test_row_order_brings_neighbours_half_a_head_apart() -> None:
    assert NeighbourPairs(4).index(8) == [0, 2, 1, 3, 4, 6, 5, 7]


class TestLlamaConfigs(ConfigKit):
    plugin = pegboard_model_llama
    claims = frozenset({"hf:MistralForCausalLM"})
    architecture = "llama"
    known: ClassVar[dict[str, Any]] = {
        "pretraining_tp": 1,
        "logits_scaling": 1.0,
        "rope_interleaved": False,
        "transformers_version": "5",
        "_name_or_path": "x",
    }

    def hf(self, changes: dict[str, Any]) -> Any:
        return read_config(ConfigInput(HF | changes, "hf", "LlamaForCausalLM"))

    def gguf(self, changes: dict[str, Any]) -> Any:
        return gguf(changes)
