"""Pegboard: an LLM inference engine with a small core and a plugin for everything else.

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pegboard.__about__ import __version__

if TYPE_CHECKING:
    from pegboard.api.params import Logprob, SamplingParams
    from pegboard.api.step import TokenLogprobs
    from pegboard.config.engine import EngineConfig
    from pegboard.engine.async_llm import AsyncLLM
    from pegboard.engine.llm import LLM
    from pegboard.engine.llm_engine import LLMEngine
    from pegboard.engine.outputs import CompletionOutput, RequestOutput
    from pegboard.text.chat import ChatTemplate
    from pegboard.text.tokenizer import Tokenizer

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatTemplate",
    "CompletionOutput",
    "EngineConfig",
    "LLMEngine",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "TokenLogprobs",
    "Tokenizer",
    "__version__",
]

_HOMES = {
    "AsyncLLM": "pegboard.engine.async_llm",
    "ChatTemplate": "pegboard.text.chat",
    "CompletionOutput": "pegboard.engine.outputs",
    "EngineConfig": "pegboard.config.engine",
    "LLM": "pegboard.engine.llm",
    "LLMEngine": "pegboard.engine.llm_engine",
    "Logprob": "pegboard.api.params",
    "RequestOutput": "pegboard.engine.outputs",
    "SamplingParams": "pegboard.api.params",
    "TokenLogprobs": "pegboard.api.step",
    "Tokenizer": "pegboard.text.tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pegboard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
