"""The Triton attention backend passes the conformance kit."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from pegboard_attention_triton import pegboard_attention_backends
from pegboard_testkit.attention_case import Setting
from pegboard_testkit.attention_kit import AttentionKit

(BACKEND,) = pegboard_attention_backends()


@pytest.mark.accept
class TestTritonAttention(AttentionKit):
    """Interpreted, which is slow: fewer heads, head sizes and mixtures than usual."""

    backend = attrs.evolve(BACKEND, head_sizes=(16, 80))
    mixtures = 6

    def setting(self, **changes: Any) -> Setting:
        return super().setting(**{"heads": 2, "kv_heads": 1, **changes})


@pytest.mark.gpu
class TestTritonAttentionOnTheDevice(AttentionKit):
    backend = BACKEND

    device = "cuda"
