"""Conformance kit for the surface *tokenizer*.

A test file of a tokeniser subclasses `TokenizerKit`, names the descriptor, and writes its files
into a folder::

    class TestMyTokenizer(TokenizerKit):
        tokenizer = MY_TOKENIZER

        def write(self, folder):
            (folder / "my-vocabulary.txt").write_text(...)

For one without `find`, `spec` gives the specification instead, and the test of `find` is left out.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.tokenizer import TextTokenizer, TokenizerClass
from pegboard.errors import RequestError
from pegboard.testing.boards import built_tokenizer
from pegboard_testkit.applicable import leave_out
from pegboard_testkit.own_settings import OwnSettings

__all__ = ["TokenizerKit"]

TEXTS = (
    "a",
    "Plain words, and a full stop.",
    "  spaces   at both ends ",
    "line\nbreaks\r\nand\ttabs\n",
    "naïve café, straße, Ελλάδα, Привет",
    "日本語 한국어 עברית",
    "flags 🇫🇷, families 👩‍👩‍👧‍👦, one 👍🏽",
    "def f(x):\n    return x ** 2  # code",
    "0123456789 1_000_000 3.14e-10",
)


class TokenizerKit(OwnSettings):
    """Tests of a tokeniser; subclass it in a test file under a name that begins with ``Test``.

    `tokenizer`, and `write` or `spec`, must be given; the other attributes may be changed.
    """

    tokenizer: TokenizerClass
    """The descriptor."""
    texts: Sequence[str] = TEXTS
    """Texts that come back as they were."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        tokenizer = getattr(cls, "tokenizer", None)
        leave_out(
            cls,
            tokenizer is not None and tokenizer.find is None,
            "test_it_finds_its_own_files_and_no_others",
        )

    def write(self, folder: Path) -> None:
        """Put the tokeniser's files into an empty folder."""

    def spec(self, folder: Path) -> TokenizerSpec:
        """The specification of what `write` put there."""
        assert self.tokenizer.find is not None, f"{type(self).__name__} must define spec(folder)"
        found = self.tokenizer.find.load()(str(folder))
        assert isinstance(found, TokenizerSpec), f"find gave {found!r} for its own files"
        return found

    @pytest.fixture
    def built(self, tmp_path: Path) -> TextTokenizer:
        """As the engine builds it."""
        self.write(tmp_path)
        return built_tokenizer(self.tokenizer, self.spec(tmp_path), self.settings)

    def test_it_finds_its_own_files_and_no_others(self, tmp_path: Path) -> None:
        assert self.tokenizer.find is not None
        find, empty = self.tokenizer.find.load(), tmp_path / "empty"
        empty.mkdir()
        assert find(str(empty)) is None, "something was found in an empty folder"
        assert find(str(tmp_path / "absent")) is None
        own = tmp_path / "own"
        own.mkdir()
        self.write(own)
        assert isinstance(find(str(own)), TokenizerSpec)

    def test_texts_come_back_as_they_were(self, built: TextTokenizer) -> None:
        for text in self.texts:
            ids = built.encode(text, add_special_tokens=False)
            assert all(0 <= token < built.vocab_size for token in ids), f"{text!r}: {ids}"
            assert built.decode(ids) == text, f"{text!r} comes back otherwise"

    def test_special_tokens_stand_around_a_text(self, built: TextTokenizer) -> None:
        for text in self.texts:
            plain, framed = built.encode(text, add_special_tokens=False), built.encode(text)
            place = len(framed) - len(plain)
            fits = [n for n in range(place + 1) if framed[n : n + len(plain)] == plain]
            assert fits, f"{text!r}: {framed} does not hold {plain}"
            added = {*framed[: fits[0]], *framed[fits[0] + len(plain) :]}
            assert added <= built.special_ids, f"{added - built.special_ids} is not special"
            assert built.decode(framed) == text

    def test_special_tokens_can_be_left_out_or_shown(self, built: TextTokenizer) -> None:
        plain = built.encode(self.texts[0], add_special_tokens=False)
        for token in built.special_ids:
            name = built.token_bytes(token).decode()
            assert name, f"special token {token} has no name"
            assert name not in built.decode([*plain, token]), f"{name} is shown"
            shown = built.decode([*plain, token], skip_special_tokens=False)
            assert name in shown, f"{name} is not shown where it is asked for"

    def test_names_and_ids_lead_to_each_other(self, built: TextTokenizer) -> None:
        for text in self.texts:
            for token in built.encode(text):
                name = built.id_to_token(token)
                assert name is not None and built.token_to_id(name) == token, (token, name)
        assert built.id_to_token(built.vocab_size + 1000) is None
        assert built.token_to_id("no token is called so \u2603") is None

    def test_a_stream_gives_what_decoding_at_once_gives(self, built: TextTokenizer) -> None:
        for number, text in enumerate(self.texts):
            ids, draws = built.encode(text), random.Random(number)
            for most in (1, 2, 5):
                stream, parts, place = built.detokenizer(), list[str](), 0
                while place < len(ids):
                    count = draws.randint(1, most)
                    parts.append(stream.push(ids[place : place + count]))
                    place += count
                assert "\ufffd" not in "".join(parts), f"{text!r}: half a character in {parts}"
                whole = "".join([*parts, stream.finish()])
                assert whole == built.decode(ids) == text, f"{text!r}: {parts}"

    def test_a_stream_that_ends_within_a_character_says_so(self, built: TextTokenizer) -> None:
        for text in self.texts:
            ids = built.encode(text, add_special_tokens=False)
            for stop in range(len(ids)):
                stream = built.detokenizer()
                found = stream.push(ids[:stop]) + stream.finish()
                assert found == built.decode(ids[:stop])

    def test_what_is_no_token_gives_no_text(self, built: TextTokenizer) -> None:
        strange = [built.vocab_size, built.vocab_size + 5, 2**31 - 1]
        assert built.decode(strange) == ""
        assert [built.token_bytes(token) for token in strange] == [b""] * 3
        stream = built.detokenizer()
        assert stream.push(strange) + stream.finish() == ""

    def test_what_is_no_text_is_refused(self, built: TextTokenizer) -> None:
        for wrong in ("\ud800", "a\udfffb", 5, b"bytes", None):
            with pytest.raises(RequestError) as caught:
                built.encode(wrong)  # type: ignore[arg-type]
            assert caught.value.field == "prompt"

    def test_several_threads_may_use_it(self, built: TextTokenizer) -> None:
        texts = [text * (1 + n % 3) for n, text in enumerate([*self.texts] * 8)]
        alone = [built.encode(text) for text in texts]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(built.encode, texts)) == alone
            assert list(pool.map(built.decode, alone)) == texts

    def test_it_imports_no_torch(self) -> None:
        modules = {str(self.tokenizer.build).partition(":")[0]}
        if self.tokenizer.find is not None:
            modules.add(str(self.tokenizer.find).partition(":")[0])
        code = f"import sys, {', '.join(sorted(modules))}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
