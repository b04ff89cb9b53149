"""The tokeniser kit passes the core's own kind and fails wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pegboard import Tokenizer
from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.tokenizer import TokenizerClass
from pegboard.testing.boards import own_board
from pegboard.testing.checkpoints import ByteVocabulary
from pegboard_testkit.tokenizer_kit import TokenizerKit

OWN = own_board().registry("tokenizer").get("hf")
SPEC = TokenizerSpec(
    ByteVocabulary().json(), "made", 259, bos_token_id=2, eos_token_ids=(1,), add_bos=True
)


class TestOwn(TokenizerKit):
    tokenizer: TokenizerClass = OWN

    def spec(self, folder: Path) -> TokenizerSpec:
        return SPEC


class _Around:
    """The core's tokeniser, with one thing done wrong."""

    def __init__(self) -> None:
        self._inner = Tokenizer.from_spec(SPEC)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Stripping(_Around):
    """Loses spaces."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._inner.encode(text.strip(), add_special_tokens)


class Impatient(_Around):
    """Shows half characters."""

    def detokenizer(self, prompt_ids: Iterable[int] = (), **options: Any) -> Any:
        inner = self._inner

        class Stream:
            def push(self, ids: Sequence[int]) -> str:
                return inner.decode(ids)

            def finish(self) -> str:
                return ""

        return Stream()


class Shy(_Around):
    """Never shows special tokens."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._inner.decode(ids, True)


@pytest.mark.parametrize(
    ("tokenizer", "test", "said"),
    [
        (Stripping, "test_texts_come_back_as_they_were", "comes back otherwise"),
        (Impatient, "test_a_stream_gives_what_decoding_at_once_gives", "half a character"),
        (Shy, "test_special_tokens_can_be_left_out_or_shown", "is not shown"),
    ],
)
def test_a_wrong_tokenizer_fails(tokenizer: Any, test: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        getattr(TestOwn(), test)(tokenizer())
