"""The Triton attention backend passes the conformance kit."""

from __future__ import annotations

import attrs

from pegboard_attention_triton import pegboard_attention_backends
from pegboard_testkit.attention_kit import AttentionKit


class TestTritonAttention(AttentionKit):
    # The interpreter is slow: fewer head sizes and mixtures than the descriptor allows.
    (offered,) = pegboard_attention_backends()
    backend = attrs.evolve(offered, head_sizes=(16, 80))
    mixtures = 6
