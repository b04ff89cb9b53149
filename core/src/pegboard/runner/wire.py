"""Messages between the engine's process and the ranks: a tag of one byte, then the content.

Plans, late inputs and results are MessagePack; what is said seldom is pickled, for both ends are
one program.
"""

from __future__ import annotations

import logging
import pickle
from typing import Any

import msgspec

from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.errors import PegboardError

__all__ = [
    "ANSWER",
    "CALL",
    "CLOSE",
    "FAULT",
    "PLAN",
    "RESULT",
    "SAMPLE",
    "START",
    "fault",
    "late",
    "log_level",
    "pack",
    "read_late",
    "read_plan",
    "read_result",
    "result",
    "step",
    "unpack",
]

START, CALL, PLAN, SAMPLE, CLOSE = b"s", b"c", b"p", b"l", b"q"
"""To a rank: ``(EngineConfig, PluginPlan, RankPlace, log level)``; ``(number, method, arguments)``;
a step's plan; late inputs; nothing."""
ANSWER, RESULT, FAULT = b"a", b"r", b"f"
"""From a rank: ``(number, value)``, with number -1 the progress of loading; a step's result, of
rank 0 only; ``(PegboardError or None, traceback)``."""


def pack(tag: bytes, content: Any) -> bytes:
    """A message with pickled content."""
    return tag + pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def unpack(body: bytes) -> Any:
    """The content of such a message."""
    return pickle.loads(body)


def step(plan: StepPlan) -> bytes:
    """A message that starts a step."""
    return PLAN + msgspec.msgpack.encode(plan)


def read_plan(body: bytes) -> StepPlan:
    """The content of such a message."""
    return msgspec.msgpack.decode(body, type=StepPlan)


def late(inputs: LateInputs) -> bytes:
    """A message that lets the step be sampled which was started last."""
    return SAMPLE + msgspec.msgpack.encode(inputs)


def read_late(body: bytes) -> LateInputs:
    """The content of such a message."""
    return msgspec.msgpack.decode(body, type=LateInputs)


def result(found: StepResult) -> bytes:
    """A message with what a step brought."""
    return RESULT + msgspec.msgpack.encode(found)


def read_result(body: bytes) -> StepResult:
    """The content of such a message."""
    return msgspec.msgpack.decode(body, type=StepResult)


def fault(error: BaseException, trace: str) -> bytes:
    """What went wrong in a rank; errors of our own go as they are, where they can be pickled."""
    if isinstance(error, PegboardError):
        try:
            message = pack(FAULT, (error, trace))
            unpack(message[1:])
            return message
        except Exception:
            return pack(FAULT, (None, trace))
    return pack(FAULT, (None, trace))


def log_level() -> int:
    """The level of this process's log, which ranks take over."""
    return logging.getLogger("pegboard").getEffectiveLevel()
