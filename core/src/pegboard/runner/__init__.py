"""The worker side of a step: the persistent batch, input preparation, the forward pass, results.

Tensors live here and below (`nn`, `sampling`, `weights`); the scheduler's side knows slots and
block ids only.
"""

from __future__ import annotations
