"""The torch attention backend passes the conformance kit."""

from __future__ import annotations

from pegboard_attention_torch import pegboard_attention_backends
from pegboard_testkit.attention_kit import AttentionKit


class TestTorchAttention(AttentionKit):
    (backend,) = pegboard_attention_backends()
