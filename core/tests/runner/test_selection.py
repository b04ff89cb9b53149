from __future__ import annotations

import attrs
import pytest

from pegboard.api.attention import AttentionBackend
from pegboard.api.kv import FullAttentionSpec, KVGroup
from pegboard.api.platform import Platform, ProbeResult
from pegboard.errors import PluginError, SelectionError
from pegboard.runner.select import (
    BackendWish,
    choose_backend,
    choose_platform,
    choose_prompts_backend,
)

SPEC = FullAttentionSpec(kv_heads=2, head_size=80, dtype="bfloat16")
GROUP = KVGroup(0, SPEC, 16, ("0.self",))
WISH = BackendWish(platform="cpu", dtype="bfloat16")


def here() -> ProbeResult:
    return ProbeResult(True, "found 2 cores")


def absent() -> ProbeResult:
    return ProbeResult(False, "no driver found")


def broken() -> ProbeResult:
    raise OSError("library is cut short")


def odd() -> str:
    return "yes"


def platform(name: str, probe: str, priority: int = 0) -> Platform:
    return Platform(name, f"{__name__}:{probe}", f"{__name__}:here", priority)


def backend(name: str, priority: int = 0, **conditions) -> AttentionBackend:
    return AttentionBackend(name, f"{__name__}:here", priority=priority, **conditions)


def test_the_usable_platform_of_highest_priority_wins():
    platforms = [platform("a", "here", 1), platform("b", "here", 5), platform("c", "absent", 9)]
    assert choose_platform(platforms).name == "b"


def test_a_wanted_platform_wins_over_priorities():
    platforms = [platform("a", "here", 1), platform("b", "here", 5)]
    assert choose_platform(platforms, "a").name == "a"


def test_a_wanted_platform_that_is_not_usable_is_not_replaced():
    platforms = [platform("a", "absent"), platform("b", "here")]
    with pytest.raises(SelectionError, match=r"'a' is not usable.*no driver found"):
        choose_platform(platforms, "a")


def test_without_a_usable_platform_the_error_has_every_answer():
    platforms = [platform("a", "absent"), platform("b", "broken")]
    with pytest.raises(SelectionError) as error:
        choose_platform(platforms)
    for part in ("a (priority 0): not usable, no driver found", "b (", "OSError: library is cut"):
        assert part in str(error.value)


def test_what_might_have_brought_another_is_told_where_nothing_serves():
    hint = "acme 1.0 provides it and is installed, but VLLM_PLUGINS='x' leaves it out."
    with pytest.raises(SelectionError, match=r"no driver found\. acme 1\.0 .* leaves it out"):
        choose_platform([platform("a", "absent")], left_out=lambda: hint)
    with pytest.raises(SelectionError, match=r"is not among cuda\. acme 1\.0 .* leaves it out"):
        choose_backend([backend("a", platforms=("cuda",))], GROUP, WISH, lambda: hint)
    with pytest.raises(SelectionError) as error:
        choose_platform([platform("a", "here"), platform("b", "here")], left_out=lambda: hint)
    assert "acme" not in str(error.value), "a tie is another matter"


def test_a_probe_that_answers_with_something_else_counts_as_absent():
    with pytest.raises(SelectionError, match="its probe returned str"):
        choose_platform([platform("a", "odd")])


def test_a_tie_is_an_error_that_names_both_and_the_remedy():
    platforms = [platform("a", "here", 3), platform("b", "here", 3), platform("c", "absent", 9)]
    with pytest.raises(SelectionError) as error:
        choose_platform(platforms)
    for part in ("a and b", "set platform to one of them", "found 2 cores", "no driver found"):
        assert part in str(error.value)


def test_the_fitting_backend_of_highest_priority_wins():
    backends = [
        backend("any"),
        backend("fast", 9, head_sizes=(64, 128)),
        backend("good", 5, platforms=("cpu",), dtypes=("bfloat16",), block_sizes=(16,)),
    ]
    assert choose_backend(backends, GROUP, WISH).name == "good"


def test_when_no_backend_fits_every_one_is_listed_with_all_its_reasons():
    backends = [
        backend("heads", head_sizes=(64, 128), dtypes=("float16",)),
        backend("other", platforms=("cuda",), kinds=("latent",)),
        backend("cache", kv_dtypes=("float8_e4m3fn",), block_sizes=(32, 64)),
    ]
    with pytest.raises(SelectionError) as error:
        choose_backend(backends, GROUP, WISH)
    for part in (
        "KV group 0 (full attention, head size 80)",
        "head size 80 is not among 64, 128",
        "dtype bfloat16 is not among float16",
        "platform cpu is not among cuda",
        "kind full is not among latent",
        "KV dtype bfloat16 is not among float8_e4m3fn",
        "block size 16 is not among 32, 64",
    ):
        assert part in str(error.value)


def test_a_wanted_backend_is_not_replaced_and_missing_features_are_named():
    backends = [backend("sinks", features=frozenset({"sinks"})), backend("plain", 5)]
    wish = BackendWish("cpu", "bfloat16", features=frozenset({"sinks"}))
    assert choose_backend(backends, GROUP, wish).name == "sinks"
    with pytest.raises(SelectionError, match="lacks sinks"):
        choose_backend(backends, GROUP, BackendWish("cpu", "float16", wish.features, "plain"))


def test_equal_backends_are_an_error():
    with pytest.raises(SelectionError, match=r"a and b are equally good.*set attention_backend"):
        choose_backend([backend("a"), backend("b")], GROUP, WISH)


def test_a_backend_that_leaves_the_kv_write_to_the_core_serves_like_another():
    separate = backend("separate", fused_kv_write=False)
    assert choose_backend([separate], GROUP, WISH) is separate


def prompts_backend(name, **more):
    return backend(name, rows="prompts", fused_kv_write=False, **more)


def test_a_backend_for_prompts_is_the_best_that_fits_or_none():
    low, high = (prompts_backend(name, priority=p) for name, p in (("low", 1), ("high", 2)))
    assert choose_prompts_backend([low, high], GROUP, WISH) is high
    assert choose_prompts_backend([], GROUP, WISH) is None
    narrow = prompts_backend("narrow", head_sizes=(7,))
    assert choose_prompts_backend([narrow], GROUP, WISH) is None
    with pytest.raises(SelectionError, match=r"equally good for the prompts.*Candidates: .*fits"):
        choose_prompts_backend([low, attrs.evolve(low, name="same")], GROUP, WISH)


def test_a_backend_for_prompts_that_is_asked_for_must_serve():
    narrow = prompts_backend("narrow", head_sizes=(7,))
    wish = attrs.evolve(WISH, name="narrow")
    with pytest.raises(SelectionError, match=r"head size .* is not among 7"):
        choose_prompts_backend([narrow], GROUP, wish, asked=True)


def test_a_backend_for_prompts_may_not_write_the_cache():
    with pytest.raises(PluginError, match=r"'writes'.*fused_kv_write=False"):
        backend("writes", rows="prompts")
