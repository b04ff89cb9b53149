"""What the Qwen family reads from configuration files, and what it refuses."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import pegboard_model_qwen
from pegboard.api.model import ConfigInput
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_model_qwen.config import read_config
from pegboard_model_qwen.weights import weight_map
from pegboard_testkit.config_kit import ConfigKit, windows

HF: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 3,
}
GGUF: dict[str, Any] = {
    "block_count": 3,
    "context_length": 256,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "vocab_size": 100,
}
FULL, SLIDING = "full_attention", "sliding_attention"
QWEN2, QWEN3 = "Qwen2ForCausalLM", "Qwen3ForCausalLM"
MOE2, MOE3 = "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}


def gguf(
    changes: dict[str, Any], names: tuple[str, ...] = ("output.weight",), arch: str = "qwen3"
) -> Any:
    keys = {f"{arch}.{name}": value for name, value in (GGUF | changes).items()}
    keys |= {"general.architecture": arch, "tokenizer.ggml.eos_token_id": 2}
    return read_config(ConfigInput(keys, "gguf", arch, frozenset(names)))


def test_the_architecture_says_which_norms_and_biases_there_are(read_hf: Any) -> None:
    old, new = read_hf(HF, QWEN2), read_hf(HF, QWEN3)
    assert (old.qk_norm, old.qkv_bias, old.output_bias) == (False, True, False)
    assert (new.qk_norm, new.qkv_bias, new.output_bias) == (True, False, False)
    biased = read_hf(HF | {"attention_bias": True}, QWEN3)
    assert (biased.qkv_bias, biased.output_bias) == (True, True)


def test_head_size_is_given_or_what_the_architecture_means(read_hf: Any) -> None:
    assert read_hf(HF, QWEN2).head_size == 16
    assert read_hf(HF, QWEN3).head_size == 128
    assert read_hf(HF | {"head_dim": 24}, QWEN3).head_size == 24


def test_key_heads_may_be_null_but_not_left_out(read_hf: Any) -> None:
    assert read_hf(HF | {"num_key_value_heads": None}).kv_heads == 4
    without = {key: value for key, value in HF.items() if key != "num_key_value_heads"}
    with pytest.raises(ConfigError, match="num_key_value_heads is missing"):
        read_hf(without)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"sliding_window": 8}, [None] * 3),
        ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 0}, [None] * 3),
        (
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2},
            [None] * 2 + [8],
        ),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": None}, [None] * 3),
        ({"use_sliding_window": True, "max_window_layers": 0}, [None] * 3),
        (
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": [SLIDING, FULL, SLIDING],
                "max_window_layers": 3,
            },
            [8, None, 8],
        ),
    ],
)
def test_windows_are_those_of_the_reference(
    read_hf: Any, keys: dict[str, Any], expected: list[int | None]
) -> None:
    for architecture in (QWEN2, QWEN3):
        assert windows(read_hf(HF | keys, architecture)) == expected


def test_a_window_whose_length_is_left_out_has_4096_tokens(read_hf: Any) -> None:
    keys = {key: value for key, value in HF.items() if key != "sliding_window"}
    found = read_hf(keys | {"use_sliding_window": True, "max_window_layers": 2})
    assert windows(found) == [None, None, 4096]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"layer_types": [SLIDING] * 3}, "use_sliding_window=False"),
        ({"layer_types": [SLIDING] * 3, "use_sliding_window": True}, "sliding_window=None"),
        ({"layer_types": [FULL] * 2}, "a list of 3 times"),
        ({"use_sliding_window": "yes"}, "use_sliding_window='yes'"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window=0"),
        ({"max_window_layers": -1}, "max_window_layers=-1"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_key_value_heads": 3}, "4 attention heads are not a multiple of 3"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "rope_type='spiral'"),
        ({"dual_chunk_attention_config": 7}, "dual_chunk_attention_config=7"),
        ({"dtype": "int3"}, "dtype='int3'"),
    ],
)
def test_bad_values_are_refused_by_name(read_hf: Any, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_hf(HF | keys)


def test_a_hidden_size_that_heads_cannot_share_is_refused(read_hf: Any) -> None:
    with pytest.raises(ConfigError, match="hidden size 66"):
        read_hf(HF | {"hidden_size": 66}, QWEN2)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "'mrope' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"use_mrope": True}, "use_mrope=True"),
        ({"vision_config": {}}, "vision_config"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    read_hf: Any, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        read_hf(HF | keys)


def test_chunked_attention_of_long_contexts_limits_the_context(read_hf: Any) -> None:
    keys = {
        "dual_chunk_attention_config": {"chunk_size": 64, "original_max_position_embeddings": 128}
    }
    limit = read_hf(HF | keys, QWEN2).facts.position_limit
    assert limit is not None
    assert (limit[0], "dual chunk" in limit[1]) == (128, True)
    assert read_hf(HF, QWEN2).facts.position_limit is None


def test_gguf_metadata_gives_the_same_sizes_as_a_config_file(read_hf: Any) -> None:
    ours, theirs = gguf({}), read_hf(HF | {"head_dim": 16})
    for name in (
        "layers",
        "hidden_size",
        "inner_size",
        "heads",
        "kv_heads",
        "head_size",
        "qk_norm",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.facts.eos_token_ids == theirs.facts.eos_token_ids == (2,)


def test_gguf_says_some_things_by_the_presence_of_tensors() -> None:
    full = gguf({}, ("blk.0.attn_q.bias", "blk.0.attn_output.bias"), "qwen2")
    assert (full.tied, full.qkv_bias, full.output_bias, full.qk_norm) == (True, True, True, False)
    assert not gguf({}).tied


@pytest.mark.parametrize(
    ("key", "value"), [("attention.scale", 0.5), ("attention.sliding_window", 8)]
)
def test_gguf_settings_that_are_not_built_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=key.replace(".", r"\.")):
        gguf({key: value})


@pytest.mark.parametrize(
    ("changes", "kind", "factor"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, "linear", 4.0),
        ({"rope.scale_linear": 2.0}, "linear", 2.0),
        ({}, "default", 1.0),
    ],
)
def test_gguf_rope_scaling_is_read(changes: dict[str, Any], kind: str, factor: float) -> None:
    rope = gguf(changes).rope
    assert (rope.kind, rope.factor) == (kind, factor)


def test_a_mixture_has_the_sizes_of_the_file(read_hf: Any) -> None:
    old, new = (read_hf(HF | EXPERTS, name).mixture for name in (MOE2, MOE3))
    assert (new.experts, new.top_k, new.inner_size) == (8, 2, 24)
    assert (old.shared_size, new.shared_size) == (20, 0)
    assert not new.renormalise
    assert read_hf(HF | EXPERTS | {"norm_topk_prob": True}, MOE3).mixture.renormalise


def test_the_number_of_experts_has_two_names(read_hf: Any) -> None:
    renamed = HF | EXPERTS | {"num_experts": None, "num_local_experts": 8}
    assert read_hf(renamed, MOE3).mixture.experts == 8
    with pytest.raises(ConfigError, match=r"num_experts=8.*num_local_experts=4"):
        read_hf(HF | EXPERTS | {"num_local_experts": 4}, MOE3)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [True] * 3),
        ({"decoder_sparse_step": 2}, [False, True, False]),
        ({"mlp_only_layers": [0, 7]}, [False, True, True]),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, [False] * 3),
    ],
)
def test_which_layers_have_experts(
    read_hf: Any, keys: dict[str, Any], expected: list[bool]
) -> None:
    assert list(read_hf(HF | EXPERTS | keys, MOE3).sparse) == expected


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        ({"num_experts": None}, ConfigError, "num_experts is missing"),
        ({"num_experts": 0}, ConfigError, "num_experts=0"),
        ({"num_experts_per_tok": 9}, ConfigError, "9 experts per token"),
        ({"decoder_sparse_step": 0}, ConfigError, "decoder_sparse_step=0"),
        ({"mlp_only_layers": ["1"]}, ConfigError, "mlp_only_layers"),
        ({"mlp_only_layers": 1}, ConfigError, "mlp_only_layers=1"),
        ({"norm_topk_prob": 1}, ConfigError, "norm_topk_prob=1"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
            UnsupportedError,
            "max_window_layers=2",
        ),
    ],
)
def test_bad_settings_of_experts_are_refused_by_name(
    read_hf: Any, keys: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        read_hf(HF | EXPERTS | keys, MOE3)


def test_experts_in_a_dense_architecture_are_refused(read_hf: Any) -> None:
    with pytest.raises(UnsupportedError, match="num_experts=8"):
        read_hf(HF | EXPERTS, QWEN3)


def test_windows_of_mixtures_are_those_of_the_reference(read_hf: Any) -> None:
    keys = HF | EXPERTS | {"use_sliding_window": True, "sliding_window": 8}
    assert windows(read_hf(keys | {"max_window_layers": 3}, MOE2)) == [8, None, 8]
    assert windows(read_hf(keys | {"max_window_layers": 1}, MOE2)) == [8, None, None]
    assert windows(read_hf(keys | {"max_window_layers": None}, MOE3)) == [8] * 3


def test_gguf_mixtures_are_renormalised_and_their_layers_known_by_their_tensors() -> None:
    experts = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 24}
    found = gguf(experts, ("blk.1.ffn_gate_inp.weight",), "qwen3moe")
    assert found.sparse == (False, True, False)
    assert (found.mixture.experts, found.mixture.top_k, found.mixture.inner_size) == (8, 2, 24)
    assert found.mixture.renormalise
    with pytest.raises(UnsupportedError, match=r"qwen3moe\.expert_gating_func=2"):
        gguf(experts | {"expert_gating_func": 2}, (), "qwen3moe")
    with pytest.raises(ConfigError, match=r"qwen3moe\.expert_used_count is missing"):
        gguf(experts | {"expert_used_count": None}, (), "qwen3moe")


def test_a_tied_checkpoint_skips_a_head_of_its_own_with_a_reason(read_hf: Any) -> None:
    names = weight_map(read_hf(HF | {"tie_word_embeddings": True}), "hf")
    assert any(skip.pattern == "lm_head.weight" and "tied" in skip.reason for skip in names.skips)
    assert all(rule.target != "head" for rule in names.rules)


class TestQwenConfigs(ConfigKit):
    plugin = pegboard_model_qwen
    claims = frozenset({"hf:Qwen2ForCausalLM", "hf:Qwen3ForCausalLM", "gguf:qwen2"})
    architecture = "qwen3"
    known: ClassVar[dict[str, Any]] = {"use_mrope": False, "torch_dtype": "bfloat16"}

    def hf(self, changes: dict[str, Any]) -> Any:
        return read_config(ConfigInput(HF | changes, "hf", QWEN3))

    def gguf(self, changes: dict[str, Any]) -> Any:
        return gguf({key.removeprefix("qwen3."): value for key, value in changes.items()})
