"""Choosing the library: FlashAttention 4 where it is installed, else cuDNN."""

from __future__ import annotations

import torch

from pegboard.api.attention import AttentionContext
from pegboard.errors import UnsupportedError
from pegboard_attention_flash.cudnn import CudnnPrompts
from pegboard_attention_flash.fa4 import Fa4Prompts, find_fa4

__all__ = ["make_kernel"]

CAPABILITY = (8, 0)


def make_kernel(ctx: AttentionContext) -> CudnnPrompts | Fa4Prompts:
    """The kernel object of one group.

    Raises `UnsupportedError` for values wider or narrower than keys, a cache of another dtype than
    the compute dtype, and devices without either library.
    """
    _check_group(ctx)
    if ctx.device.type != "cuda":
        raise UnsupportedError(
            f"attention backend 'flash': device={ctx.device} is not a CUDA device"
        )
    found = torch.cuda.get_device_capability(ctx.device)
    if found < CAPABILITY:
        raise UnsupportedError(
            f"attention backend 'flash': compute capability {found[0]}.{found[1]} is below "
            f"{CAPABILITY[0]}.{CAPABILITY[1]}"
        )
    library = find_fa4()
    if library is not None:
        return Fa4Prompts(ctx, library)
    if not torch.backends.cudnn.is_available():
        raise UnsupportedError(
            "attention backend 'flash': neither flash-attn-4 nor cuDNN is available; install the "
            "extra 'fa4' or a torch with cuDNN"
        )
    return CudnnPrompts(ctx)


def _check_group(ctx: AttentionContext) -> None:
    spec = ctx.group.spec
    if spec.value_head_size not in (None, spec.head_size):
        raise UnsupportedError(
            f"attention backend 'flash': value_head_size={spec.value_head_size} differs from "
            f"head_size={spec.head_size}"
        )
    if getattr(torch, spec.dtype) != ctx.dtype:
        raise UnsupportedError(
            f"attention backend 'flash': KV dtype {spec.dtype} differs from the compute dtype "
            f"{str(ctx.dtype).removeprefix('torch.')}"
        )
