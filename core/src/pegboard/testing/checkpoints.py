"""Small checkpoints for tests, written to a folder in the usual form (``config.json``,
safetensors, tokeniser).

Everything follows from the arguments: the same seed gives the same files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.testing.hybrid_config import HybridConfig, hybrid_shapes
from pegboard.testing.scripted_config import ScriptedConfig
from pegboard.testing.tiny_config import TinyConfig

__all__ = [
    "ByteVocabulary",
    "write_hybrid_model",
    "write_model_files",
    "write_scripted_model",
    "write_tiny_model",
]

PAD, EOS, BOS, FIRST_BYTE = 0, 1, 2, 3
"""Ids of the byte vocabulary: three special tokens, then the 256 bytes, then extra pieces."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@attrs.frozen
class ByteVocabulary:
    """A byte-level vocabulary of 259 ids plus one id for each of `pieces`, which encoding never
    uses."""

    pieces: tuple[bytes, ...] = attrs.field(default=(), converter=tuple)

    @property
    def size(self) -> int:
        return FIRST_BYTE + 256 + len(self.pieces)

    def byte_id(self, value: int) -> int:
        """Id of the token for one byte."""
        return FIRST_BYTE + value

    def piece_id(self, piece: bytes) -> int:
        """Id of an extra piece."""
        return FIRST_BYTE + 256 + self.pieces.index(piece)

    def ids(self, data: bytes) -> list[int]:
        """Ids of the single bytes of `data`."""
        return [self.byte_id(value) for value in data]

    def spec(self) -> TokenizerSpec:
        """What the tokeniser of a checkpoint with this vocabulary is built from."""
        return TokenizerSpec(
            json=self.json(),
            source="tokenizer.json",
            vocab_size=self.size,
            bos_token_id=BOS,
            eos_token_ids=(EOS,),
            pad_token_id=PAD,
            add_bos=False,
        )

    def json(self) -> str:
        """The ``tokenizer.json``."""
        letters = _byte_letters()
        vocabulary = {"<pad>": PAD, "<eos>": EOS, "<bos>": BOS}
        vocabulary.update({letters[value]: self.byte_id(value) for value in range(256)})
        for number, piece in enumerate(self.pieces):
            vocabulary["".join(letters[value] for value in piece)] = FIRST_BYTE + 256 + number
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        return json.dumps(
            {
                "version": "1.0",
                "added_tokens": [
                    _special(number, text) for text, number in list(vocabulary.items())[:3]
                ],
                "pre_tokenizer": byte_level,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            }
        )


def write_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    scale: float = 0.3,
    vocabulary: ByteVocabulary | None = None,
    **shape: Any,
) -> Path:
    """A ``tiny`` model with normally distributed weights of standard deviation `scale`; `shape` as
    in `TinyConfig`."""
    vocabulary = vocabulary or ByteVocabulary()
    config = TinyConfig(vocab_size=vocabulary.size, **shape)
    draws = np.random.default_rng(seed)
    tensors = {name: _weight(draws, dims, scale) for name, dims in _tiny_shapes(config).items()}
    return write_model_files(folder, "PegboardTiny", config, tensors, vocabulary)


def write_hybrid_model(
    folder: Path,
    *,
    seed: int = 0,
    scale: float = 0.3,
    vocabulary: ByteVocabulary | None = None,
    **shape: Any,
) -> Path:
    """A ``tiny-hybrid`` model, weights as those of `write_tiny_model`; `shape` as in
    `HybridConfig`."""
    vocabulary = vocabulary or ByteVocabulary()
    config = HybridConfig(vocab_size=vocabulary.size, **shape)
    draws = np.random.default_rng(seed)
    tensors = {name: _weight(draws, dims, scale) for name, dims in hybrid_shapes(config).items()}
    return write_model_files(folder, "PegboardTinyHybrid", config, tensors, vocabulary)


def write_scripted_model(
    folder: Path,
    script: Sequence[int],
    *,
    prompt_tokens: int,
    vocabulary: ByteVocabulary | None = None,
    **settings: Any,
) -> Path:
    """A ``scripted`` model that answers any prompt of `prompt_tokens` tokens with `script`, then
    ends."""
    vocabulary = vocabulary or ByteVocabulary()
    config = ScriptedConfig(
        script=script, offset=prompt_tokens - 1, vocab_size=vocabulary.size, **settings
    )
    embed = np.zeros((config.vocab_size, 8), np.float32)
    return write_model_files(
        folder, "PegboardScripted", config, {"embed.weight": embed}, vocabulary
    )


def write_model_files(
    folder: Path,
    architecture: str,
    config: Any,
    tensors: dict[str, Any],
    vocabulary: ByteVocabulary,
) -> Path:
    """Write one model; `config` is an attrs instance whose fields become ``config.json``."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    raw = {"architectures": [architecture], **attrs.asdict(config)}
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "tokenizer.json").write_text(vocabulary.json())
    settings = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _tiny_shapes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden, config.intermediate
    query, shared = config.heads * config.head_size, config.kv_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (config.vocab_size, hidden)}
    for layer in range(config.layers):
        base = f"layers.{layer}"
        shapes |= {
            f"{base}.attn_norm.weight": (hidden,),
            f"{base}.attn.q.weight": (query, hidden),
            f"{base}.attn.k.weight": (shared, hidden),
            f"{base}.attn.v.weight": (shared, hidden),
            f"{base}.attn.out.weight": (hidden, query),
            f"{base}.mlp_norm.weight": (hidden,),
            f"{base}.mlp.gate.weight": (inner, hidden),
            f"{base}.mlp.up.weight": (inner, hidden),
            f"{base}.mlp.down.weight": (hidden, inner),
        }
    return shapes | {"norm.weight": (hidden,), "head.weight": (config.vocab_size, hidden)}


def _weight(draws: np.random.Generator, shape: tuple[int, ...], scale: float) -> Any:
    values = draws.standard_normal(shape) * scale
    return (values + (1.0 if len(shape) == 1 else 0.0)).astype(np.float32)


def _special(number: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, "special": True, **flags}


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(value) if value in own else chr(next(spare)) for value in range(256)]
