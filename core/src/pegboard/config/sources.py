"""From what a user calls a model (path or hub id) to an opened checkpoint."""

from __future__ import annotations

import os
import re
import reprlib
from typing import TYPE_CHECKING

from pegboard.api.checkpoint import Checkpoint, CheckpointSource, TokenizerSpec
from pegboard.config.tokenizer import AUTO, find_tokenizer
from pegboard.errors import CheckpointError, ConfigError, PegboardError, PluginError, SelectionError

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["find_checkpoint", "open_checkpoint", "open_tokenizer", "select_source"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")

_FILE_ENDINGS = (".bin", ".ckpt", ".gguf", ".json", ".pt", ".pth", ".safetensors")
"""A name that ends like this means a file; no hub id does."""

_HUB_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
"""What is fetched of a hub repository: never a pickle."""

_HUB_IGNORED = ("*/*.safetensors", "*/*.json", "consolidated*.safetensors", "adapter_*")
"""Other copies of the weights, in sub-folders or under another name."""


def find_checkpoint(model: str, revision: str | None = None, *, field: str = "model") -> str:
    """The local path of a checkpoint: `model` itself if it exists, else the hub repository of that
    name, fetched. `field` is the setting that gave the name, for messages.

    The hub library's cache and its offline mode (``HF_HUB_OFFLINE=1``) are honoured. Raises
    `ConfigError` for a path that does not exist or a name that cannot be one, `CheckpointError` if
    the hub does not give the files.
    """
    path = os.path.expanduser(model)
    if os.path.exists(path):
        if revision is not None:
            raise ConfigError(f"revision={revision!r} is not allowed: {model} is a local path")
        return path
    if _looks_like_path(model):
        raise ConfigError(f"{field}={_shown(model)}: there is no such file or directory")
    if not _HUB_ID.fullmatch(model) or ".." in model or "--" in model:
        raise ConfigError(
            f"{field}={_shown(model)} is not allowed: a path that exists, or a hub id 'owner/name' "
            "(each part at most 96 letters, digits, '.', '_' and '-')"
        )
    return _fetch(model, revision, field)


def _shown(name: str) -> str:
    """A name for a message: whole, unless it is longer than any path that a person would give."""
    return repr(name) if len(name) <= 1000 else f"{reprlib.repr(name)} ({len(name)} characters)"


def _looks_like_path(model: str) -> bool:
    rooted = model.startswith(("/", "./", "../", "~")) or model in (".", "..")
    return rooted or "\\" in model or model.count("/") > 1 or model.endswith(_FILE_ENDINGS)


def _fetch(model: str, revision: str | None, field: str = "model") -> str:
    """Bring the files of a hub repository into the hub library's cache."""
    import huggingface_hub  # slow to import, and needed for hub ids only

    try:
        return str(
            huggingface_hub.snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(_HUB_FILES),
                ignore_patterns=list(_HUB_IGNORED),
            )
        )
    except Exception as error:  # the library raises many kinds, among them those of its HTTP client
        raise CheckpointError(_why_not_fetched(f"{field} {model!r}", revision, error)) from error


def _why_not_fetched(name: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    what = "it" + (f" at revision {revision!r}" if revision else "")
    lead = f"{name} is no local path, and the hub does not give {what}"
    detail = str(error).strip().split("\n", 1)[0]
    if isinstance(error, errors.GatedRepoError):
        return f"{lead}: access must be granted to your account first (log in, or set HF_TOKEN)"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{lead}: it has no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{lead}: no such repository, or it is private and you are not logged in (set HF_TOKEN)"
        )
    if constants.HF_HUB_OFFLINE:
        return (
            f"{lead}: offline mode is on (HF_HUB_OFFLINE) and the files are not in the cache "
            f"{constants.HF_HUB_CACHE}; unset it, or give a local path"
        )
    return f"{lead}: {type(error).__name__}: {detail}"


def select_source(board: Board, path: str) -> CheckpointSource:
    """The one source whose probe says yes to `path`.

    Raises `SelectionError` if several do, `CheckpointError` or `MissingPluginError` if none does.
    What is neither a file nor a directory is not opened: a FIFO would wait for a writer.
    """
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise CheckpointError(f"{path}: is not a regular file, nor a directory")
    sources: list[CheckpointSource] = list(board.registry("checkpoint"))
    yes = [source for source in sources if _probe(source, path)]
    if len(yes) > 1:
        names = ", ".join(f"{s.name!r} ({_provider(board, s)})" for s in yes)
        raise SelectionError(
            f"{path}: more than one checkpoint source says it can read this: {names}"
        )
    if not yes:
        raise _no_source(board, path, sources)
    return yes[0]


def _provider(board: Board, source: CheckpointSource) -> str:
    return board.provenance("checkpoint", source.name).distribution


def _probe(source: CheckpointSource, path: str) -> bool:
    try:
        return bool(source.probe.load()(path))
    except PegboardError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise PluginError(
            f"the probe of checkpoint source {source.name!r} failed on {path}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _no_source(board: Board, path: str, sources: list[CheckpointSource]) -> PegboardError:
    """What to say of a path that nothing can read."""
    if os.path.isdir(path):
        more = board.left_out("checkpoint")
        return CheckpointError(_unreadable_directory(path, sources) + (more and f". {more}"))
    suffix = os.path.splitext(path)[1].lower().lstrip(".")
    if suffix and suffix not in board.registry("checkpoint"):
        return board.absence("checkpoint", suffix, wanted_by=path)
    tried = ", ".join(repr(source.name) for source in sources)
    return CheckpointError(f"{path}: no checkpoint source can read this file; asked were {tried}")


def _unreadable_directory(path: str, sources: list[CheckpointSource]) -> str:
    tried = ", ".join(repr(source.name) for source in sources)
    lead = f"{path}: no checkpoint source reads this directory (asked were {tried})"
    single = sorted(name for name in os.listdir(path) if name.endswith(".gguf"))
    if single:
        return (
            f"{lead}; it holds GGUF files, of which one must be given: "
            f"{', '.join(os.path.join(path, name) for name in single[:5])}"
        )
    return (
        f"{lead}: it holds neither config.json nor model.safetensors nor any other weights; "
        "a model is a directory with these files, or a single file such as a .gguf"
    )


def open_checkpoint(board: Board, model: str, revision: str | None = None) -> Checkpoint:
    """Find a checkpoint and open it with the source that reads it. Raises what its parts raise."""
    path = find_checkpoint(model, revision)
    source = select_source(board, path)
    more = (board.settings("checkpoint", source.name),) if source.takes_settings else ()
    checkpoint: Checkpoint = source.open.load()(path, *more)
    return checkpoint


def open_tokenizer(board: Board, location: str, mode: str = AUTO) -> TokenizerSpec:
    """The tokeniser of a path or hub id, of the kind `mode`; a directory needs no model for it,
    only ``tokenizer.json`` or the files of the kind that is asked for."""
    path = find_checkpoint(location, field="tokenizer")
    try:
        return find_tokenizer(board, path, lambda: _own_tokenizer(board, path), mode)
    except PegboardError as error:  # else it would read as a fault of the model
        raise type(error)(f"tokenizer={location!r}: {error}") from error


def _own_tokenizer(board: Board, path: str) -> TokenizerSpec:
    """What the files that the core and the sources know say."""
    if os.path.exists(os.path.join(path, "tokenizer.json")):
        from pegboard.text.hf_files import tokenizer_spec_from_dir

        return tokenizer_spec_from_dir(path)
    checkpoint = open_checkpoint(board, path)
    try:
        return checkpoint.tokenizer()
    finally:
        checkpoint.close()
