"""Reading the tokeniser and the chat templates of a checkpoint directory in Hugging Face's
layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.errors import CheckpointError, UnsupportedError

__all__ = ["chat_templates_from_dir", "tokenizer_spec_from_dir"]

_CONFIG = "tokenizer_config.json"
_OTHER_TOKENIZERS = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = {}


class _TokenizerFile(msgspec.Struct):
    """What is needed of a `tokenizer.json` here; the tokeniser reads the rest."""

    model: _Model
    added_tokens: list[_Added] = []

    def ids(self) -> dict[str, int]:
        """Ids by token string; a unigram vocabulary is a list of (token, score)."""
        vocab = self.model.vocab
        ids = (
            dict(vocab)
            if isinstance(vocab, dict)
            else {str(entry[0]): i for i, entry in enumerate(vocab)}
        )
        ids.update((token.content, token.id) for token in self.added_tokens)
        return ids


def tokenizer_spec_from_dir(path: str | Path) -> TokenizerSpec:
    """The tokeniser of a directory, from `tokenizer.json`, `tokenizer_config.json` and
    `special_tokens_map.json`.

    Tokens that only `added_tokens_decoder` of the configuration has are added. Raises
    `UnsupportedError` if there is no `tokenizer.json`, `CheckpointError` naming the file if
    anything is malformed or contradicts itself.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.exists():
        raise UnsupportedError(_absent(folder))
    config = _read_json_object(folder / _CONFIG)
    text = _with_added_tokens(_read_text(file), config, file)
    ids = _decode_file(text, file).ids()
    special = _special_tokens(config, _read_json_object(folder / "special_tokens_map.json"), folder)
    eos = _named_id("eos_token", special, ids, folder)
    return TokenizerSpec(
        json=text,
        source=str(file),
        vocab_size=max(ids.values(), default=-1) + 1,
        bos_token_id=_named_id("bos_token", special, ids, folder),
        eos_token_ids=() if eos is None else (eos,),
        pad_token_id=ids.get(special["pad_token"]) if "pad_token" in special else None,
        add_bos=_flag(config, "add_bos_token", folder),
        add_eos=_flag(config, "add_eos_token", folder),
        special_tokens=special,
    )


def chat_templates_from_dir(path: str | Path) -> dict[str, str]:
    """Chat templates by name, ``"default"`` being the usual one; empty if there are none.

    Read in this order, later ones in place of earlier: `chat_template` of `tokenizer_config.json`
    (a string, or a list of named ones), `chat_template.json`, `chat_template.jinja`, and
    `additional_chat_templates/NAME.jinja`.
    """
    folder = Path(path)
    templates: dict[str, str] = {}
    for name in (_CONFIG, "chat_template.json"):
        file = folder / name
        templates.update(_templates_of(_read_json_object(file).get("chat_template"), file))
    default = folder / "chat_template.jinja"
    if default.exists():
        templates["default"] = _read_text(default)
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = _read_text(file)
    return templates


def _absent(folder: Path) -> str:
    there = [name for name in _OTHER_TOKENIZERS if (folder / name).is_file()]
    if not there:
        return f"{folder}: no tokenizer.json"
    return (
        f"{folder}: no tokenizer.json; {', '.join(there)} cannot be used in its place. Convert it "
        "once: load the tokeniser with transformers' AutoTokenizer, save it with save_pretrained"
    )


def _read_text(file: Path) -> str:
    try:
        if not file.is_file():  # opening a FIFO would wait for a writer
            raise CheckpointError(f"{file}: is not a regular file")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error


def _read_json_object(file: Path) -> dict[str, Any]:
    """The content of a JSON file, or an empty mapping if it does not exist."""
    if not file.exists():
        return {}
    try:
        value = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: a JSON object is expected, not {type(value).__name__}")
    return value


def _decode_file(text: str, file: Path) -> _TokenizerFile:
    try:
        return msgspec.json.decode(text, type=_TokenizerFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a tokeniser that can be read: {error}") from error


def _with_added_tokens(text: str, config: Mapping[str, Any], file: Path) -> str:
    """`tokenizer.json` completed with the tokens that only the configuration lists."""
    listed = _added_tokens(config, file.parent)
    known = {token.id: token.content for token in _decode_file(text, file).added_tokens}
    for token_id, entry in listed.items():
        if known.get(token_id, entry["content"]) != entry["content"]:
            raise CheckpointError(
                f"{file}: added token {token_id} is {known[token_id]!r}, "
                f"but {_CONFIG} says {entry['content']!r}"
            )
    missing = [entry for token_id, entry in sorted(listed.items()) if token_id not in known]
    if not missing:
        return text
    content = json.loads(text)
    merged = [*(content.get("added_tokens") or []), *missing]
    content["added_tokens"] = sorted(merged, key=lambda entry: int(entry["id"]))
    return json.dumps(content, ensure_ascii=False)


def _added_tokens(config: Mapping[str, Any], folder: Path) -> dict[int, dict[str, Any]]:
    """`added_tokens_decoder` of the configuration, in the form that `tokenizer.json` has."""
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": True,
        "special": False,
    }
    listed: dict[int, dict[str, Any]] = {}
    decoder = config.get("added_tokens_decoder") or {}
    try:
        for key, entry in decoder.items():
            chosen = {flag: bool(entry.get(flag, value)) for flag, value in flags.items()}
            listed[int(key)] = {"id": int(key), "content": str(entry["content"]), **chosen}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / _CONFIG}: added_tokens_decoder must map ids to objects with 'content'; "
            f"{error!r}"
        ) from error
    return listed


def _special_tokens(
    config: Mapping[str, Any], token_map: Mapping[str, Any], folder: Path
) -> dict[str, str]:
    """Texts of the named special tokens; the configuration comes before the older map."""
    texts: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        value = config.get(name) if config.get(name) is not None else token_map.get(name)
        if value is not None:
            texts[name] = _token_text(name, value, folder)
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):  # older files have a list here, which gives templates no names
        texts.update((name, _token_text(name, value, folder)) for name, value in extra.items())
    return texts


def _token_text(name: str, value: Any, folder: Path) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise CheckpointError(
            f"{folder / _CONFIG}: {name} {value!r} is neither a text nor an object with 'content'"
        )
    return text


def _named_id(
    name: str, special: Mapping[str, str], ids: Mapping[str, int], folder: Path
) -> int | None:
    text = special.get(name)
    if text is None:
        return None
    if text not in ids:
        raise CheckpointError(
            f"{folder / _CONFIG}: {name} {text!r} is not in the vocabulary of tokenizer.json"
        )
    return ids[text]


def _flag(config: Mapping[str, Any], key: str, folder: Path) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{folder / _CONFIG}: {key} {value!r} is neither true nor false")
    return value


def _templates_of(value: Any, file: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = {str(entry["name"]): entry["template"] for entry in value}
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file}: chat_template must be a text or a list of objects with 'name' and 'template'"
        ) from error
    for name, template in named.items():
        if not isinstance(template, str):
            raise CheckpointError(f"{file}: chat template {name!r} is not a text")
    return named
