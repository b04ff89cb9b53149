"""Attention of prompts through cuDNN or FlashAttention 4 for Pegboard."""

from __future__ import annotations

from pegboard.api.attention import AttentionBackend
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"attention": 0}


@hookimpl
def pegboard_attention_backends() -> tuple[AttentionBackend, ...]:
    """The backend ``flash``, for prompts on NVIDIA GPUs."""
    return (
        AttentionBackend(
            name="flash",
            kernel="pegboard_attention_flash.kernel:make_kernel",
            platforms=("cuda",),
            kinds=("full",),
            dtypes=("bfloat16", "float16"),
            kv_dtypes=("bfloat16", "float16"),
            head_sizes=(64, 80, 96, 112, 128),
            capture="none",
            fused_kv_write=False,
            rows="prompts",
            warms_up=True,
            priority=20,
        ),
    )
