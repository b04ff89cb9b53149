"""The embedded tokeniser: what is written, what is refused, and real vocabularies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers.decoders import ByteLevel

from pegboard import Tokenizer
from pegboard.api.checkpoint import TokenizerSpec
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard_quant_gguf.reader import read_gguf
from pegboard_quant_gguf.source import open_checkpoint
from pegboard_quant_gguf.testing import write_gguf
from pegboard_quant_gguf.tokenizer import tokenizer_spec

LETTERS = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
"""The 256 letters of byte-level BPE and nothing else."""
TOKENS = [*LETTERS, "he", "Ġt", "<|bos|>", "<|end|>", "[user]", "<|eot|>"]
BOS, END, USER, EOT = 258, 259, 260, 261
KEY = "tokenizer.ggml."


def keys(**changes: Any) -> dict[str, Any]:
    """A small byte-level vocabulary; a change of None leaves the key out."""
    pairs = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": TOKENS,
        "token_type": [1] * 258 + [3, 3, 4, 3],
        "merges": ["h e", "Ġ t"],
        "bos_token_id": BOS,
        "eos_token_id": END,
        **changes,
    }
    return {KEY + name: value for name, value in pairs.items() if value is not None}


def spec(file: Path, **changes: Any) -> TokenizerSpec:
    return tokenizer_spec(read_gguf(write_gguf(file, keys(**changes))).metadata, str(file))


def test_ids_come_from_merges_and_special_tokens_from_their_text(file: Path) -> None:
    tokenizer = Tokenizer.from_spec(spec(file))
    he, t = 256, 257
    x = LETTERS.index("x")
    assert tokenizer.encode("he t<|eot|>x[user]") == [he, t, EOT, x, USER]
    assert (
        tokenizer.decode([he, t, EOT, x, USER], skip_special_tokens=False) == "he t<|eot|>x[user]"
    )
    assert tokenizer.decode([he, t, EOT, x, USER]) == "he tx[user]"


@pytest.mark.parametrize("text", ["", " ", "  a\n\n b\t", "é→🦙\u200d", "don't 123  \r\n"])
def test_text_comes_back_exactly(file: Path, text: str) -> None:
    for pre in ("gpt-2", "gpt2", "smollm", "llama-bpe", "qwen2"):
        tokenizer = Tokenizer.from_spec(spec(file, pre=pre))
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_what_the_file_does_not_say_is_none(file: Path) -> None:
    found = spec(file, bos_token_id=None, eos_token_id=None)
    assert (found.bos_token_id, found.eos_token_ids, found.pad_token_id) == (None, (), None)
    assert (found.add_bos, found.add_eos, dict(found.special_tokens)) == (None, None, {})
    assert Tokenizer.from_spec(found).encode("he") == [256]


def test_named_tokens_and_flags_are_read(file: Path) -> None:
    found = spec(file, padding_token_id=END, add_bos_token=False, add_eos_token=True)
    assert (found.bos_token_id, found.pad_token_id, found.vocab_size) == (BOS, END, len(TOKENS))
    assert (found.add_bos, found.add_eos) == (False, True)
    expected = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    assert dict(found.special_tokens) == expected


def test_all_end_tokens_are_united(file: Path) -> None:
    assert spec(file, eot_token_id=EOT, eom_token_id=END).eos_token_ids == (END, EOT)


def test_an_id_that_means_none_is_none(file: Path) -> None:
    assert spec(file, padding_token_id=0xFFFFFFFF).pad_token_id is None


def test_llama3_vocabularies_begin_with_bos_unless_the_file_says_no(file: Path) -> None:
    assert Tokenizer.from_spec(spec(file, pre="llama-bpe")).encode("he") == [BOS, 256]
    silent = spec(file, pre="llama-bpe", add_bos_token=False)
    assert Tokenizer.from_spec(silent).encode("he") == [256]
    nameless = spec(file, pre="llama-bpe", bos_token_id=None)
    assert Tokenizer.from_spec(nameless).encode("he") == [256]


def test_llama3_takes_a_word_that_is_a_token_whole(file: Path) -> None:
    """ "he" has no merge here, so only a vocabulary that ignores merges finds it."""
    assert Tokenizer.from_spec(spec(file, merges=["Ġ t"])).encode("he") != [256]
    found = spec(file, pre="llama-bpe", merges=["Ġ t"], bos_token_id=None)
    assert Tokenizer.from_spec(found).encode("he") == [256]


def test_o35g_a_file_without_pretokeniser_is_refused_with_a_remedy(file: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"'tokenizer.ggml.pre' is missing.*'qwen2'"
    ) as caught:
        spec(file, pre=None)
    assert "give the tokeniser of the original model" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("->", ["->"]),
        ("12345", ["1", "2", "3", "4", "5"]),
        ("(x):\n", ["(x", "):\n"]),
        ("(x)->12345:\n\n", ["(x", ")->", "1", "2", "3", "4", "5", ":\n\n"]),
    ],
)
def test_o35g_qwen2_keeps_symbols_with_their_line_ends_and_cuts_digits_apart(
    file: Path, text: str, pieces: list[str]
) -> None:
    """The vocabulary has a token, and the merges to it, for every word of any cut."""
    wide = ["->", ")->", "12", "123", "(x", "):", "):Ċ", ":Ċ", ":ĊĊ"]
    merges = ["- >", ") ->", "1 2", "12 3", "( x", ") :", "): Ċ", ": Ċ", ":Ċ Ċ"]
    changes = {"tokens": [*LETTERS, *wide], "token_type": None, "merges": merges}
    ends = {"bos_token_id": None, "eos_token_id": None}
    for pre, expected in (("qwen2", True), ("gpt-2", text == "->")):
        tokenizer = Tokenizer.from_spec(spec(file, pre=pre, **changes, **ends))
        ids = tokenizer.encode(text)
        assert ([tokenizer.decode([i]) for i in ids] == pieces) is expected, pre
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "jina-v9"}, "'tokenizer.ggml.pre' is 'jina-v9', which is not supported"),
        ({"model": "bert"}, "of kind 'bert', which is not supported; supported: 'gpt2'"),
        ({"model": None}, "holds no tokeniser"),
    ],
)
def test_a_tokeniser_that_is_absent_or_unknown_is_told_from_a_broken_one(
    file: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        spec(file, **changes)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": 5}, "'tokenizer.ggml.model' must be of type str"),
        ({"tokens": None}, "'tokenizer.ggml.tokens' is missing or empty"),
        ({"tokens": [1, 2]}, "'tokenizer.ggml.tokens' must be an array of str"),
        ({"tokens": [*TOKENS[:-1], "he"]}, "holds 'he' 2 times"),
        ({"merges": None}, "'tokenizer.ggml.merges' is missing"),
        ({"merges": ["h e", "het"]}, "element 1 of key 'tokenizer.ggml.merges' is 'het'"),
        ({"merges": ["h "]}, "two tokens are expected"),
        ({"token_type": [1, 3]}, f"has 2 elements for {len(TOKENS)} tokens"),
        ({"token_type": [1] * 261 + [6]}, "token 261 ('<|eot|>') has type 6"),
        ({"bos_token_id": 262}, "'tokenizer.ggml.bos_token_id' is 262, outside the vocabulary"),
        ({"eot_token_id": "x"}, "'tokenizer.ggml.eot_token_id' must be of type int"),
        ({"add_bos_token": 1}, "'tokenizer.ggml.add_bos_token' must be of type bool"),
    ],
)
def test_a_bad_tokeniser_is_refused_with_its_key(
    file: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec(file, **changes)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_merge_of_unknown_tokens_is_refused_when_the_tokeniser_is_built(file: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        Tokenizer.from_spec(spec(file, merges=["zz q"]))


TEXTS = [
    "The capital of France is",
    "  def f(x):\n\treturn x ** two\n\n\n",
    "Grüße, naïve café — “quotes” … don't we'll I'd",
    "你好，世界！こんにちは 안녕하세요 привет नमस्ते مرحبا",
    "🦙🏳️\u200d🌈 e\u0301 \u00a0\u3000 zero\u200bwidth",
    "<|im_start|>user\nhi<|im_end|>\n",
    " ".join(["word"] * 200) + "   \n ",
]
"""Without digits: transformers reads the file's vocabulary as if digits were not cut apart."""


@pytest.fixture(scope="module")
def demo(smollm2_path: Path) -> Tokenizer:
    """The demo model's tokeniser."""
    return Tokenizer.from_spec(open_checkpoint(str(smollm2_path)).tokenizer())


@pytest.mark.accept
@pytest.mark.model
def test_the_demo_model_gives_the_ids_of_transformers(smollm2_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = Path(smollm2_path)
    reference = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    found = open_checkpoint(str(path)).tokenizer()
    tokenizer = Tokenizer.from_spec(found)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(range(17, found.vocab_size)) == reference.decode(
        range(17, found.vocab_size)
    )
    assert (found.bos_token_id, found.eos_token_ids, found.add_bos) == (1, (2,), False)


@pytest.mark.model
def test_the_demo_model_decodes_every_token(smollm2_path: Path, demo: Tokenizer) -> None:
    decoder = ByteLevel()
    tokens = open_checkpoint(str(smollm2_path)).files.metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == demo.vocab_size
    for token_id in range(17, len(tokens)):
        assert demo.decode([token_id]) == decoder.decode([tokens[token_id]])


@pytest.mark.model
def test_the_demo_model_gives_text_back_exactly(demo: Tokenizer) -> None:
    for text in (*TEXTS, "1234,5 x10\n"):
        assert demo.decode(demo.encode(text), skip_special_tokens=False) == text


@pytest.mark.model
def test_the_demo_model_cuts_digits_apart(demo: Tokenizer) -> None:
    assert [demo.decode([i]) for i in demo.encode("in 2024")] == ["in", " ", *"2024"]


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of vocabularies in the source package of llama-cpp-python.

    pip unpacks a source package while it downloads it; building it fails, for want of its build
    system, which is as well. What was unpacked is kept.
    """
    place = tmp_path_factory.mktemp("goldens")
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--no-clean"]
    command = [sys.executable, "-m", "pip", "download", *options, "llama-cpp-python==0.3.36"]
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    folders = list(place.glob("*/*/vendor/llama.cpp/models"))
    assert folders, f"the source package was not unpacked:\n{done.stdout}\n{done.stderr}"
    return folders[0]


@pytest.mark.accept
@pytest.mark.network
@pytest.mark.parametrize(
    ("text", "pieces"),
    [("->", ["->"]), ("12345", [*"12345"]), ("(x):\n", ["(x", "):\n"])],
)
def test_o35g_qwen2_has_its_canonical_tokens(goldens: Path, text: str, pieces: list[str]) -> None:
    path = goldens / "ggml-vocab-qwen2.gguf"
    tokenizer = Tokenizer.from_spec(tokenizer_spec(read_gguf(path).metadata, str(path)))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer.decode([i]) for i in ids] == pieces


@pytest.mark.accept
@pytest.mark.network
@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3"])
def test_real_vocabularies_give_their_golden_ids(goldens: Path, name: str) -> None:
    path = goldens / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_spec(tokenizer_spec(read_gguf(path).metadata, str(path)))
    with open(f"{path}.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    with open(f"{path}.out", encoding="utf-8") as file:
        lines = file.read().split("\n")
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == [int(number) for number in line.split()], f"{text!r}"
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
