"""The values that pass between the core and a KV connector. Part of `pegboard.api.connector`, which
exports them and is their manual.

All are plain data. `msgspec.to_builtins` turns them into lists and dicts, `msgspec.convert` back.
"""

from __future__ import annotations

from pegboard.api.transfer_match import (
    Admitted,
    Allocated,
    Later,
    Load,
    Match,
    MatchAnswer,
    Now,
    Pending,
    Piece,
)
from pegboard.api.transfer_report import ConnectorLink, FailedBlock, StoreEvent, TransferReport
from pegboard.api.transfer_step import ConnectorStep, Finished, Keep, StepOrder, StepView

__all__ = [
    "Admitted",
    "Allocated",
    "ConnectorLink",
    "ConnectorStep",
    "FailedBlock",
    "Finished",
    "Keep",
    "Later",
    "Load",
    "Match",
    "MatchAnswer",
    "Now",
    "Pending",
    "Piece",
    "StepOrder",
    "StepView",
    "StoreEvent",
    "TransferReport",
]
