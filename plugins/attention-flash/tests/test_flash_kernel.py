"""The library is chosen by what there is; groups that it does not serve are refused. On a GPU, the
libraries themselves are compared with attention by its definition."""

from __future__ import annotations

import attrs
import pytest
import torch

from pegboard.api.attention import AttentionContext
from pegboard.api.kv import FullAttentionSpec, KVGroup
from pegboard.errors import UnsupportedError
from pegboard_attention_flash import pegboard_attention_backends
from pegboard_testkit.attention_case import AttentionCase, Rows, Setting

CUDA = torch.device("cuda", 0)


def context(device: torch.device = CUDA, **spec: object) -> AttentionContext:
    kept = {"kv_heads": 2, "head_size": 64, "dtype": "bfloat16", **spec}
    group = KVGroup(0, FullAttentionSpec(**kept), 16, ("0.self",))  # type: ignore[arg-type]
    return AttentionContext(group, torch.bfloat16, device, max_rows=4, max_tokens=4096)


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.usefixtures("capability")
def test_flash_attention_comes_before_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    from pegboard_attention_flash import kernel
    from pegboard_attention_flash.cudnn import CudnnPrompts
    from pegboard_attention_flash.fa4 import Fa4, Fa4Prompts

    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(kernel, "find_fa4", lambda: None)
    assert isinstance(kernel.make_kernel(context()), CudnnPrompts)
    monkeypatch.setattr(kernel, "find_fa4", lambda: Fa4(print, print))
    assert isinstance(kernel.make_kernel(context()), Fa4Prompts)


@pytest.mark.usefixtures("capability")
def test_without_a_library_the_error_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    from pegboard_attention_flash import kernel

    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    monkeypatch.setattr(kernel, "find_fa4", lambda: None)
    with pytest.raises(UnsupportedError, match=r"flash-attn-4.*cuDNN"):
        kernel.make_kernel(context())


def test_an_old_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pegboard_attention_flash.kernel import make_kernel

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(UnsupportedError, match=r"7\.5 is below 8\.0"):
        make_kernel(context())


def test_groups_and_devices_that_are_not_served_are_refused() -> None:
    from pegboard_attention_flash.kernel import make_kernel

    with pytest.raises(UnsupportedError, match="value_head_size=32"):
        make_kernel(context(value_head_size=32))
    with pytest.raises(UnsupportedError, match="float16 differs from the compute dtype bfloat16"):
        make_kernel(context(dtype="float16"))
    with pytest.raises(UnsupportedError, match="device=cpu"):
        make_kernel(context(torch.device("cpu")))


REAL: dict[str, Rows] = {
    "prompts": ((2048, 2048), (2048, 2048), (2048, 2048), (2048, 2048), (2300, 2300), (700, 700)),
    "a chunk behind a prefix": ((2500, 2500 + 4096 + 999),),
    "a chunk behind a long prefix": ((2048, 2048 + 16384 + 4096 + 17), (3000, 3000)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("rows", REAL.values(), ids=REAL)
@pytest.mark.parametrize("size", [64, 128])
def test_the_libraries_give_what_the_formula_says(rows: Rows, size: int) -> None:
    from pegboard_attention_flash.cudnn import CudnnPrompts
    from pegboard_attention_flash.fa4 import Fa4Prompts, find_fa4

    library = find_fa4()
    factories = [CudnnPrompts, *([lambda ctx: Fa4Prompts(ctx, library)] if library else [])]
    (backend,) = pegboard_attention_backends()
    setting = Setting(
        heads=4, kv_heads=1, head_size=size, dtype="bfloat16", kv_dtype="bfloat16", device="cuda"
    )
    for dtype, factory in ((dtype, f) for dtype in backend.dtypes for f in factories):
        own = attrs.evolve(setting, dtype=dtype, kv_dtype=dtype)
        case = AttentionCase(factory, [n for _, n in rows], own, fused_kv_write=False)
        case.fill(rows)
        for mine, wanted in zip(case.run(rows), case.expected(rows), strict=True):
            torch.testing.assert_close(mine.double(), wanted, rtol=3e-2, atol=3e-2)
