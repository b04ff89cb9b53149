"""What the Gemma family reads from configuration files, and what it refuses."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

import pegboard_model_gemma
from pegboard.api.model import ConfigInput
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_model_gemma.config import GemmaConfig, read_config
from pegboard_model_gemma.weights import weight_map
from pegboard_testkit.config_kit import ConfigKit, windows

FULL, SLIDING = "full_attention", "sliding_attention"
HF: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "sliding_window": 32,
    "query_pre_attn_scalar": 25,
}
GGUF: dict[str, Any] = {
    "block_count": 6,
    "context_length": 256,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 32,
    "vocab_size": 100,
}
FIRST = {"sliding_window": None, "query_pre_attn_scalar": None}
"""What takes the keys of later generations out of `HF`."""


def hf(generation: str, changes: dict[str, Any] | None = None) -> GemmaConfig:
    raw = HF | (FIRST if generation == "Gemma" else {}) | (changes or {})
    source = ConfigInput(json.loads(json.dumps(raw)), "hf", f"{generation}ForCausalLM")
    return read_config(source)


def gguf(arch: str, changes: dict[str, Any] | None = None, names: tuple[str, ...] = ()) -> Any:
    keys = GGUF | ({"attention.sliding_window": None} if arch == "gemma" else {}) | (changes or {})
    raw = {"general.architecture": arch, **{f"{arch}.{key}": v for key, v in keys.items()}}
    return read_config(ConfigInput(raw, "gguf", arch, frozenset(names)))


def test_windows_follow_from_the_generation_the_pattern_or_the_list() -> None:
    assert windows(hf("Gemma")) == [None] * 6
    assert windows(hf("Gemma2")) == [32, None] * 3
    assert windows(hf("Gemma3")) == [32] * 5 + [None]
    assert windows(hf("Gemma3", {"sliding_window_pattern": 3})) == [32, 32, None] * 2
    listed = [FULL, SLIDING, SLIDING, FULL, FULL, SLIDING]
    for generation in ("Gemma2", "Gemma3"):
        found = windows(hf(generation, {"layer_types": listed, "sliding_window_pattern": 2}))
        assert found == [None, 32, 32, None, None, 32]


def test_a_window_that_is_left_out_is_the_usual_one_and_null_is_none() -> None:
    without = {key: value for key, value in HF.items() if key != "sliding_window"}
    config = read_config(ConfigInput(without, "hf", "Gemma2ForCausalLM"))
    assert windows(config) == [4096, None] * 3
    assert windows(hf("Gemma2", {"sliding_window": None})) == [None] * 6


def test_caps_are_usual_given_or_none() -> None:
    usual = hf("Gemma2")
    assert (usual.attention_cap, usual.logit_cap) == (50.0, 30.0)
    given = hf("Gemma2", {"attn_logit_softcapping": 7.5, "final_logit_softcapping": 3})
    assert (given.attention_cap, given.logit_cap) == (7.5, 3.0)
    none = hf("Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (none.attention_cap, none.logit_cap) == (None, None)
    later = hf("Gemma3")
    assert (later.attention_cap, later.logit_cap) == (None, None)


def test_only_models_with_bounded_scores_ask_the_attention_backend_for_them() -> None:
    assert hf("Gemma2").facts.attention_features == {"soft_cap"}
    assert hf("Gemma2", {"attn_logit_softcapping": None}).facts.attention_features == set()
    assert hf("Gemma3").facts.attention_features == set()


@pytest.mark.parametrize(
    "form",
    [
        {
            "rope_theta": 900000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_local_base_freq": 9000.0,
        },
        {
            "rope_theta": 900000,
            "rope_scaling": {"type": "linear", "factor": 8},
            "rope_local_base_freq": 9000,
        },
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 900000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 9000.0},
            }
        },
        {
            "rope_theta": 900000.0,
            "rope_local_base_freq": 9000.0,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0},
                SLIDING: {"rope_type": "default"},
            },
        },
    ],
)
def test_o33_old_and_new_rope_keys_mean_the_same(form: dict[str, Any]) -> None:
    config = hf("Gemma3", form)
    assert (config.rope.kind, config.rope.theta, config.rope.factor) == ("linear", 900000.0, 8.0)
    assert (config.local_rope.kind, config.local_rope.theta) == ("default", 9000.0)


def test_o33_without_rope_keys_each_kind_has_its_usual_base() -> None:
    config = hf("Gemma3")
    assert (config.rope.theta, config.local_rope.theta) == (1_000_000.0, 10_000.0)
    for generation in ("Gemma", "Gemma2"):
        assert hf(generation).rope == hf(generation).local_rope
        assert hf(generation).rope.theta == 10_000.0
        assert hf(generation, {"rope_theta": 5000.0}).local_rope.theta == 5000.0


def test_o33_one_rope_for_a_model_that_has_two_is_refused() -> None:
    with pytest.raises(ConfigError, match="one mapping for full_attention"):
        hf("Gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    with pytest.raises(UnsupportedError, match="yarn"):
        hf("Gemma3", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}})


def test_the_scale_of_scores_is_the_files_or_the_usual_one() -> None:
    assert hf("Gemma2").scale == pytest.approx(0.2)
    assert hf("Gemma3", {"query_pre_attn_scalar": None}).scale == pytest.approx(1 / 16)
    assert hf("Gemma").scale == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("generation", "key", "value", "error"),
    [
        ("Gemma3", "use_bidirectional_attention", True, UnsupportedError),
        ("Gemma3", "attn_logit_softcapping", 50.0, UnsupportedError),
        ("Gemma2", "attn_logit_softcapping", 1e-45, ConfigError),
        ("Gemma2", "final_logit_softcapping", 1e39, ConfigError),
        ("Gemma2", "query_pre_attn_scalar", 1e-320, ConfigError),
        ("Gemma2", "query_pre_attn_scalar", 10**400, ConfigError),
        ("Gemma3", "vision_config", {"hidden_size": 3}, UnsupportedError),
        ("Gemma2", "partial_rotary_factor", 0.5, UnsupportedError),
        ("Gemma", "sliding_window", 32, UnsupportedError),
        ("Gemma", "final_logit_softcapping", 30.0, UnsupportedError),
        ("Gemma", "query_pre_attn_scalar", 25, UnsupportedError),
        ("Gemma", "layer_types", [SLIDING] * 6, UnsupportedError),
        ("Gemma2", "hidden_activation", "gelu", ConfigError),
        ("Gemma2", "hidden_act", "silu", ConfigError),
        ("Gemma2", "layer_types", [SLIDING] * 5, ConfigError),
        ("Gemma3", "layer_types", ["chunked_attention"] * 6, ConfigError),
        ("Gemma3", "layer_types", [{}] * 6, ConfigError),
        ("Gemma2", "layer_types", [[]] * 6, ConfigError),
        ("Gemma3", "sliding_window", 0, ConfigError),
        ("Gemma3", "sliding_window_pattern", "6", ConfigError),
        ("Gemma2", "final_logit_softcapping", -1.0, ConfigError),
        ("Gemma2", "hidden_size", None, ConfigError),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    generation: str, key: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=key):
        hf(generation, {key: value})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"num_key_value_heads": 3}, "4 attention heads are not a multiple of 3"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        hf("Gemma2", changes)


def test_a_wrapper_with_an_image_encoder_is_refused_and_its_text_part_named() -> None:
    with pytest.raises(
        UnsupportedError, match=r"Gemma3ForConditionalGeneration.*\(Gemma3ForCausalLM\)"
    ):
        read_config(ConfigInput(HF, "hf", "Gemma3ForConditionalGeneration"))


def test_gguf_metadata_gives_what_a_config_file_gives() -> None:
    for arch, generation in (("gemma", "Gemma"), ("gemma2", "Gemma2"), ("gemma3", "Gemma3")):
        ours, theirs = gguf(arch), hf(generation, {"query_pre_attn_scalar": 16})
        for name in ("layers", "head_size", "rope", "local_rope", "attention_cap", "logit_cap"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert windows(ours) == windows(theirs)
        assert ours.scale == pytest.approx(theirs.scale)


def test_gguf_windows_come_from_the_pattern_as_a_number_or_a_list() -> None:
    key = "attention.sliding_window_pattern"
    assert windows(gguf("gemma3", {key: 2})) == [32, None] * 3
    listed = [True, True, False, False, True, False]
    assert windows(gguf("gemma3", {key: listed})) == [32, 32, None, None, 32, None]
    with pytest.raises(ConfigError, match="sliding_window_pattern"):
        gguf("gemma3", {key: listed[1:]})
    with pytest.raises(ConfigError, match="sliding_window is missing"):
        gguf("gemma3", {"attention.sliding_window": None})
    assert windows(gguf("gemma2", {"attention.sliding_window": None})) == [4096, None] * 3
    assert windows(gguf("gemma2", {"attention.sliding_window": 0})) == [None] * 6


def test_gguf_rope_stretches_full_attention_only() -> None:
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base": 2e6}
    config = gguf("gemma3", scaled | {"rope.freq_base_swa": 9000.0})
    assert (config.rope.kind, config.rope.theta, config.rope.factor) == ("linear", 2e6, 8.0)
    assert (config.local_rope.kind, config.local_rope.theta) == ("default", 9000.0)


def test_gguf_files_of_27_billion_parameters_scale_by_the_hidden_size_per_head() -> None:
    for arch, layers in (("gemma2", 46), ("gemma3", 62)):
        assert gguf(arch, {"block_count": layers}).scale == pytest.approx(1 / 4)
        wide = {"block_count": layers, "embedding_length": 144 * 4}
        assert gguf(arch, wide).scale == pytest.approx(1 / 12)
        assert gguf(arch, wide | {"block_count": layers - 1}).scale == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("arch", "key", "value", "error"),
    [
        ("gemma3", "attn_logit_softcapping", 50.0, UnsupportedError),
        ("gemma", "attention.sliding_window", 32, UnsupportedError),
        ("gemma3", "block_count", 0, ConfigError),
    ],
)
def test_gguf_features_that_are_not_built_are_refused_by_name(
    arch: str, key: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"{arch}.{key}".replace(".", r"\.")):
        gguf(arch, {key: value})


def test_norms_are_stored_as_their_distance_from_one_in_one_kind_of_file_only() -> None:
    for generation, arch, count in (("Gemma", "gemma", 3), ("Gemma3", "gemma3", 7)):
        offsets = [rule.offset for rule in weight_map(hf(generation), "hf").rules]
        assert (offsets.count(1.0), set(offsets)) == (count, {0.0, 1.0})
        assert {rule.offset for rule in weight_map(gguf(arch), "gguf").rules} == {0.0}


def test_an_untied_head_is_loaded_and_a_tied_one_skipped() -> None:
    tied, untied = (
        weight_map(hf("Gemma2"), "hf"),
        weight_map(hf("Gemma2", {"tie_word_embeddings": False}), "hf"),
    )
    assert [skip.pattern for skip in tied.skips if "tied" in skip.reason] == ["lm_head.weight"]
    assert [rule.source for rule in untied.rules if rule.target == "head"] == ["lm_head"]
    own = gguf("gemma2", names=("output.weight",))
    assert [rule.source for rule in weight_map(own, "gguf").rules if rule.target == "head"] == [
        "output"
    ]


class TestGemmaConfigs(ConfigKit):
    plugin = pegboard_model_gemma
    claims = frozenset({"hf:Gemma2ForCausalLM", "hf:Gemma3ForCausalLM", "gguf:gemma3"})
    architecture = "gemma2"
    known: ClassVar[dict[str, Any]] = {
        "model_type": "gemma3_text",
        "cache_implementation": "hybrid",
    }

    def hf(self, changes: dict[str, Any]) -> Any:
        return hf("Gemma3", changes)

    def gguf(self, changes: dict[str, Any]) -> Any:
        return gguf("gemma2", {key.removeprefix("gemma2."): v for key, v in changes.items()})
