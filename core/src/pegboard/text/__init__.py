"""Text: tokenisers, incremental detokenising, stop strings, chat templates. Never imports torch."""

from __future__ import annotations

from pegboard.text.chat import ChatTemplate
from pegboard.text.detokenizer import IncrementalDetokenizer
from pegboard.text.hf_files import chat_templates_from_dir, tokenizer_spec_from_dir
from pegboard.text.logprobs import LogprobDecoder
from pegboard.text.messages import ToolArguments
from pegboard.text.output import TextDelta, TextStream
from pegboard.text.stops import StopMatch, StopMatcher
from pegboard.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "IncrementalDetokenizer",
    "LogprobDecoder",
    "StopMatch",
    "StopMatcher",
    "TextDelta",
    "TextStream",
    "Tokenizer",
    "ToolArguments",
    "chat_templates_from_dir",
    "tokenizer_spec_from_dir",
]
