"""SentencePiece vocabularies: the serialised tokeniser encodes as SentencePiece itself does."""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb

from pegboard import Tokenizer
from pegboard.api.checkpoint import TokenizerSpec
from pegboard.errors import CheckpointError
from pegboard_quant_gguf.reader import read_gguf
from pegboard_quant_gguf.source import open_checkpoint
from pegboard_quant_gguf.testing import write_gguf
from pegboard_quant_gguf.tokenizer import tokenizer_spec

KEY = "tokenizer.ggml."
BYTES = [f"<0x{value:02X}>" for value in range(256)]
UNK, BOS, EOS = 0, 1, 2


def vocabulary(pieces: Mapping[str, float], **changes: Any) -> dict[str, Any]:
    """Metadata of a small vocabulary with all bytes; a change of None leaves the key out."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces]
    pairs = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [float(score) for score in pieces.values()],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "unknown_token_id": UNK,
        **changes,
    }
    return {KEY + name: value for name, value in pairs.items() if value is not None}


def spec(file: Path, metadata: dict[str, Any]) -> TokenizerSpec:
    return tokenizer_spec(read_gguf(write_gguf(file, metadata)).metadata, str(file))


def merged(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's rule, word for word: the best-scored pair first, the leftmost of equals."""
    symbols = list(text)
    while True:
        pairs = [left + right for left, right in pairwise(symbols)]
        found = [place for place, pair in enumerate(pairs) if pair in scores]
        if not found:
            return symbols
        place = max(found, key=lambda place: (scores[pairs[place]], -place))
        symbols[place : place + 2] = [pairs[place]]


def random_vocabulary(rng: random.Random, letters: str) -> dict[str, float]:
    pieces = list(letters)
    for _ in range(rng.randint(2, 14)):
        pieces.append(rng.choice(pieces) + rng.choice(pieces))
    pieces = [piece for piece in dict.fromkeys(pieces) if len(piece) < 9]
    scores = [-float(rank) for rank in range(len(pieces))]
    if rng.random() < 0.5:
        rng.shuffle(scores)
    return dict(zip(pieces, scores, strict=True))


@pytest.mark.parametrize("letters", ["ab", "abc"])
def test_any_vocabulary_merges_by_score(file: Path, letters: str) -> None:
    rng = random.Random(len(letters))
    for _ in range(30):
        scores = random_vocabulary(rng, letters)
        tokenizer = Tokenizer.from_spec(spec(file, vocabulary(scores, add_space_prefix=False)))
        for _ in range(25):
            text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 24)))
            tokens = [tokenizer.id_to_token(i) for i in tokenizer.encode(text)[1:]]
            assert tokens == merged(text, scores), (text, scores)


def test_runs_of_spaces_whose_tokens_have_one_score_are_taken_from_the_left(file: Path) -> None:
    runs = {"▁" * length: -1e9 for length in range(2, 17)}
    scores = {"▁": -3.0, "a": -4.0, "▁a": -1.0, **runs}
    tokenizer = Tokenizer.from_spec(spec(file, vocabulary(scores, add_space_prefix=False)))
    for length in range(1, 70):
        for end in ("", "a"):
            ids = tokenizer.encode(" " * length + end, add_special_tokens=False)
            expected = merged("▁" * length + end, scores)
            assert [tokenizer.id_to_token(i) for i in ids] == expected


def small(file: Path, **changes: Any) -> Tokenizer:
    pieces = {"▁": -9, "h": -10, "i": -11, "▁h": -1, "▁hi": -2, "hi": -3}
    return Tokenizer.from_spec(spec(file, vocabulary(pieces, **changes)))


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str | None]:
    return [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode(text)]


def test_bos_and_a_space_come_first_unless_the_file_says_otherwise(file: Path) -> None:
    assert tokens_of(small(file), "hi") == ["<s>", "▁hi"]
    assert tokens_of(small(file, add_space_prefix=False), "hi") == ["<s>", "hi"]
    assert tokens_of(small(file, add_bos_token=False), "hi") == ["▁hi"]
    assert tokens_of(small(file, bos_token_id=None), "hi") == ["▁hi"]
    assert tokens_of(small(file, add_eos_token=True), "hi") == ["<s>", "▁hi", "</s>"]


def test_every_stretch_of_text_between_special_tokens_begins_with_a_space(file: Path) -> None:
    tokenizer = small(file)
    expected = ["<s>", "▁hi", "</s>", "▁hi"]
    assert tokens_of(tokenizer, "hi</s>hi") == expected
    assert tokens_of(tokenizer, "<s>hi</s>hi") == expected
    assert tokens_of(small(file, add_space_prefix=False), "hi</s>hi") == [
        *("<s>", "hi", "</s>", "hi")
    ]
    assert tokens_of(tokenizer, "") == ["<s>"]


@pytest.mark.parametrize("text", ["hi", " hi", "  hi  hi ", "", " ", "hé\n🦙 hi", "你好"])
@pytest.mark.parametrize("prefix", [True, False])
def test_text_comes_back_exactly(file: Path, text: str, prefix: bool) -> None:
    tokenizer = small(file, add_space_prefix=prefix)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_character_that_is_no_token_becomes_its_bytes(file: Path) -> None:
    assert tokens_of(small(file), "hié") == ["<s>", "▁hi", "<0xC3>", "<0xA9>"]


def test_without_byte_tokens_it_becomes_one_unknown_token(file: Path) -> None:
    keys = {"tokens": ["<unk>", "▁", "h"], "scores": [0.0, -1.0, -2.0], "token_type": [2, 1, 1]}
    found = spec(file, vocabulary({}, **keys, bos_token_id=None, eos_token_id=None))
    assert tokens_of(Tokenizer.from_spec(found), "héé h") == ["▁", "h", "<unk>", "▁", "h"]


def test_user_defined_tokens_are_found_in_text_as_written(file: Path) -> None:
    """Also those that are runs of spaces, which files write either way."""
    kinds = [2, 3, 3] + [6] * 256 + [1, 1, 4, 4]
    for run in ("▁▁", "  "):
        metadata = vocabulary({"▁": -9, "h": -1, run: 0, "[x]": 0}, token_type=kinds)
        found = spec(file, {**metadata, KEY + "add_space_prefix": False})
        tokenizer = Tokenizer.from_spec(found)
        ids = tokenizer.encode("h   h[x]", add_special_tokens=False)
        assert ids == [260, 261, 259, 260, 262]
        assert tokenizer.decode(ids) == "h   h[x]"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": None}, "'tokenizer.ggml.scores' has 0 elements for 262 tokens"),
        ({"scores": [1.0]}, "'tokenizer.ggml.scores' has 1 elements for 262 tokens"),
        ({"scores": [float("nan")] * 262}, "token 0 ('<unk>') has the score nan"),
        ({"token_type": None}, "'tokenizer.ggml.token_type' has 0 elements for 262 tokens"),
        ({"token_type": [1] * 261 + [7]}, "token 261 ('b') has type 7; 1 to 6 are allowed"),
        ({"token_type": [2] + [6] * 261}, "token '<s>' is marked as a byte"),
        ({"token_type": [2] + [1] * 256 + [6] + [1] * 4}, "has 1 byte tokens; all 256 or none"),
        (
            {"token_type": [1] * 262, "unknown_token_id": None},
            "neither byte tokens nor an unknown token",
        ),
        ({"add_space_prefix": 1}, "'tokenizer.ggml.add_space_prefix' must be of type bool"),
    ],
)
def test_a_bad_vocabulary_is_refused(file: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec(file, vocabulary({"▁": -9, "a": -1, "b": -2}, **changes))
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


@lru_cache
def trained(prefix: bool) -> pb.ModelProto:
    """A model trained on the source text of a module, with SentencePiece's own trainer."""
    lines = Path(argparse.__file__).read_text().splitlines()
    sink = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines if line.strip()] + ["é你 grüße"]),
        model_writer=sink,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        user_defined_symbols=[] if prefix else ["[img]", "▁▁▁▁", "\n\n"],
        num_threads=1,
        minloglevel=2,
    )
    model = pb.ModelProto()
    model.ParseFromString(sink.getvalue())
    return model


def random_text(rng: random.Random, tokens: list[str]) -> str:
    """Words of the vocabulary, spaces and rare characters, in any order."""
    rare = ["  ", " ", "\n", "\n\n", "\t", "é", "你", "🦙", "\u00a0", "\r", "e\u0301", "    ", "12"]
    source = rare if rng.random() < 0.3 else tokens
    picked = [rng.choice(source if rng.random() < 0.8 else rare) for _ in range(rng.randint(1, 30))]
    return "".join(picked).replace("▁", " ")


@pytest.mark.parametrize("prefix", [True, False])
def test_a_trained_model_gives_the_ids_of_sentencepiece(file: Path, prefix: bool) -> None:
    model = trained(prefix)
    keys = {
        "model": "llama",
        "tokens": [piece.piece for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "token_type": [piece.type for piece in model.pieces],
        "add_space_prefix": prefix,
        "add_bos_token": False,
    }
    tokenizer = Tokenizer.from_spec(spec(file, {KEY + name: keys[name] for name in keys}))
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    compare(tokenizer, reference, 600)


def compare(
    tokenizer: Tokenizer, reference: sentencepiece.SentencePieceProcessor, count: int
) -> None:
    normal = [reference.id_to_piece(i) for i in range(3, reference.get_piece_size())]
    written = [piece for piece in normal if not piece.startswith("<")]
    rng, lengths = random.Random(5), 0
    for _ in range(count):
        text = random_text(rng, written)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text), repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        lengths += len(ids)
    assert lengths > 5 * count


def processor(metadata: Mapping[str, Any]) -> sentencepiece.SentencePieceProcessor:
    """SentencePiece with a file's vocabulary."""
    model = pb.ModelProto()
    columns = (metadata[KEY + name] for name in ("tokens", "scores", "token_type"))
    for token, score, kind in zip(*columns, strict=True):
        text = token.replace(" ", "▁") if kind == 4 else token
        model.pieces.add(piece=text, score=score, type=kind)
    unknown = metadata[KEY + "unknown_token_id"]
    model.pieces[unknown].type = 2
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = pb.TrainerSpec.BPE, True
    trainer.unk_id, trainer.unk_piece = unknown, model.pieces[unknown].piece
    normalizer.name, normalizer.remove_extra_whitespaces = "identity", False
    normalizer.add_dummy_prefix = metadata.get(KEY + "add_space_prefix", True)
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


@pytest.mark.accept
@pytest.mark.network
def test_gemma_gives_the_ids_of_sentencepiece(gemma_path: Path) -> None:
    checkpoint = open_checkpoint(str(gemma_path))
    found = checkpoint.tokenizer()
    tokenizer = Tokenizer.from_spec(found)
    assert (found.bos_token_id, found.eos_token_ids, found.add_bos) == (2, (1,), True)
    assert (found.vocab_size, found.pad_token_id) == (262144, 0)
    compare(tokenizer, processor(checkpoint.files.metadata), 2000)
    assert tokens_of(tokenizer, "<bos>Hi <end_of_turn>\n\n  x")[0] == "<bos>"
    assert tokens_of(tokenizer, "Hi").count("<bos>") == 1
    checkpoint.close()
