"""Paged attention in plain torch for Pegboard."""

from __future__ import annotations

from pegboard.api.attention import AttentionBackend
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"attention": 0}


@hookimpl
def pegboard_attention_backends() -> tuple[AttentionBackend, ...]:
    """The backend ``torch``, for platforms whose memory is the host's."""
    return (
        AttentionBackend(
            name="torch",
            kernel="pegboard_attention_torch.kernel:TorchKernel",
            platforms=("cpu", "null"),
            kinds=("full", "sliding", "chunked"),
            dtypes=("float32", "bfloat16", "float16"),
            kv_dtypes=("float32", "bfloat16", "float16", "float8_e4m3fn"),
            features=frozenset({"soft_cap"}),
        ),
    )
