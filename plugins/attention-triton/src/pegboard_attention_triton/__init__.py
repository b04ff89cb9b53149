"""Paged attention in Triton for Pegboard."""

from __future__ import annotations

from pegboard.api.attention import AttentionBackend
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"attention": 0}


@hookimpl
def pegboard_attention_backends() -> tuple[AttentionBackend, ...]:
    """The backend ``triton``, for NVIDIA GPUs."""
    return (
        AttentionBackend(
            name="triton",
            kernel="pegboard_attention_triton.kernel:TritonKernel",
            platforms=("cuda",),
            kinds=("full", "sliding", "chunked"),
            dtypes=("float32", "bfloat16", "float16"),
            kv_dtypes=("float32", "bfloat16", "float16", "float8_e4m3fn"),
            head_sizes=(16, 32, 64, 80, 96, 112, 128, 160, 192, 256),
            features=frozenset({"sinks", "soft_cap"}),
            capture="whole",
            fused_kv_write=False,
            priority=10,
        ),
    )
