from __future__ import annotations

import sys

import pytest
import torch

from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVGroup, KVLayout, KVSlot
from pegboard.errors import ResourceError
from pegboard.runner.memory import SMALL_STEP, allocating, peak_bytes, step_peak
from pegboard.runner.slots import Limits
from pegboard.runner.storage import allocate_storage

KIB = 1024
LAYOUT = KVLayout("token-major", ("kv", "block", "token", "head", "dim"))


def floats(kib: int) -> torch.Tensor:
    return torch.ones(kib * KIB // 4)


def test_the_peak_is_what_was_alive_at_once():
    def work():
        a = floats(40)
        b = a + 1  # 80 alive
        del a
        c = b * 2  # 80
        del b, c
        floats(60)  # 60

    assert peak_bytes(work) == 80 * KIB


def test_views_in_place_work_and_what_was_there_before_are_not_counted():
    weights = floats(100)

    def work():
        view = weights.view(2, -1).T
        weights.mul_(1.0)
        view[:, 0].sum()

    assert peak_bytes(work) < KIB


def test_the_peak_of_work_in_inference_mode_is_seen():
    @torch.inference_mode()
    def work():
        torch.nn.functional.silu(floats(16))

    assert peak_bytes(work) == 32 * KIB


@pytest.mark.parametrize(("rows", "longest"), [(8, 4096), (256, 4096), (16, 300)])
def test_a_large_step_is_bounded_from_a_small_one(rows, longest):
    seen = []

    def run(counts):
        seen.append(counts)
        floats(8)
        return torch.ones(100 * sum(counts) + 700 * len(counts))

    limits = Limits(rows, max_tokens=2048, max_model_len=longest, vocab_size=9)
    whole = step_peak(run, limits, exact=True)
    (counts,) = seen
    assert sum(counts) == 2048
    assert len(counts) == rows
    assert max(counts) <= longest
    assert whole == 4 * (100 * 2048 + 700 * rows)
    bound = step_peak(run, limits, exact=False)
    assert sum(seen[1]) <= SMALL_STEP
    assert whole <= bound < 1.2 * whole


def test_a_context_shorter_than_the_budget_bounds_the_step():
    seen = []
    limits = Limits(max_rows=3, max_tokens=100, max_model_len=20, vocab_size=9)
    step_peak(seen.append, limits, exact=True)
    assert seen == [[20, 20, 20]]


def test_measuring_does_not_import_the_compiler():
    loaded = "torch._dynamo" in sys.modules
    peak_bytes(lambda: floats(1))
    assert ("torch._dynamo" in sys.modules) == loaded


def make_cache(dtype: str) -> tuple[list[KVSlot], KVCacheConfig]:
    spec = FullAttentionSpec(kv_heads=3, head_size=5, dtype=dtype)
    slots = [KVSlot(0, "self", spec), KVSlot(1, "self", spec), KVSlot(2, "self", shares="0.self")]
    return slots, KVCacheConfig((KVGroup(0, spec, 8, ("0.self", "1.self")),), num_blocks=7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_storage_has_the_configured_bytes_is_zero_and_aligned(dtype):
    slots, cache = make_cache(dtype)
    storage = allocate_storage(slots, cache, [LAYOUT], torch.device("cpu"))
    own = [storage["0.self"], storage["1.self"]]
    assert sum(tensors.data.nbytes for tensors in own) == cache.bytes()
    for tensors in own:
        assert tuple(tensors.data.shape) == (2, 7, 8, 3, 5)
        assert tensors.data.dtype == getattr(torch, dtype)
        assert not tensors.data.any()
        assert tensors.data.data_ptr() % 64 == 0


def test_a_slot_that_shares_reads_its_owners_storage():
    slots, cache = make_cache("float32")
    storage = allocate_storage(slots, cache, [LAYOUT], torch.device("cpu"))
    assert storage["2.self"].data is storage["0.self"].data
    assert storage["2.self"].key == "2.self"
    assert storage["1.self"].data.data_ptr() != storage["0.self"].data.data_ptr()


LIMITS = Limits(max_rows=7, max_tokens=8, max_model_len=9, vocab_size=10)


def test_an_allocation_that_fails_names_the_settings_that_size_it() -> None:
    said = "max_num_seqs=7, max_num_batched_tokens=8, max_model_len=9"
    with pytest.raises(ResourceError, match=said), allocating(LIMITS):
        torch.empty(1 << 60, dtype=torch.uint8)


def test_another_fault_while_allocating_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^a wrong shape$"), allocating(LIMITS):
        raise RuntimeError("a wrong shape")
