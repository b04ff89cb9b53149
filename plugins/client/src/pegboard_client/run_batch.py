"""``pegboard run-batch``."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Annotated, BinaryIO

import attrs
import typer

from pegboard.errors import ConfigError
from pegboard_client.batch_lines import BadLine, Job, Progress, jobs, read_output
from pegboard_client.batch_run import BatchRun, Meter
from pegboard_client.child_server import own_server
from pegboard_client.options import KeyOption, UrlOption
from pegboard_client.server import Server, choose_model
from pegboard_client.wire import Wire

__all__ = ["EXIT_ALL_FAILED", "EXIT_SOME_FAILED", "run_batch"]

EXIT_SOME_FAILED = 3
EXIT_ALL_FAILED = 4
EXIT_INTERRUPTED = 130


def run_batch(
    input_file: Annotated[
        str, typer.Option("--input-file", "-i", help="Batch file in OpenAI's form, JSON lines.")
    ],
    output_file: Annotated[
        str,
        typer.Option(
            "--output-file", "-o", help="Where answers go; what is answered there stays answered."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="A model to load; with --url, the name for lines without one."),
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Name of the loaded model in the lines; several may be given."),
    ] = None,
    max_concurrency: Annotated[int, typer.Option(help="Requests at once.", min=1)] = 64,
    retries: Annotated[
        int, typer.Option(help="How often a request is repeated that did not come through.", min=0)
    ] = 6,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Answer those again that failed before.")
    ] = False,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(help="Of a loaded model: engine settings, name=value; may be repeated."),
    ] = None,
) -> None:
    """Answer a batch file of chats and completions, with a loaded model or a server.

    Every line of the output is the answer to one line of the input, in the order in which they
    end, or says why there is none. A run that was ended, however, is taken up by the same command.

    Exit codes: 0 all lines were answered, 3 some failed, 4 all failed, 1 the server is not there,
    2 bad input, 130 interrupted.
    """
    task = Task(input_file, output_file, model, url, api_key, max_concurrency, retries)
    if model is None and url is None:
        raise ConfigError("give --model MODEL to load one, or --url of a server")
    if url is not None and (engine_option or served_model_name):
        raise ConfigError(
            "--engine-option and --served-model-name are not allowed together with --url: a "
            "server has its own settings"
        )
    names = served_model_name or [model or ""]
    words = _serve_words(model or "", names, engine_option or ())
    _check_paths(task)
    with _output(task.target, retry_failed=retry_failed) as (out, progress):
        total = _count(task, progress)
        meter = Meter(total, progress)
        raise typer.Exit(asyncio.run(_main(task, words, names[0], BatchFiles(out, meter))))


@attrs.frozen
class Task:
    """What was asked for."""

    source: str
    target: str
    model: str | None
    url: str | None
    key: str | None = attrs.field(repr=False)
    at_once: int
    retries: int


@attrs.frozen
class BatchFiles:
    """Where answers go, and how far the batch is."""

    out: BinaryIO
    meter: Meter


def _serve_words(model: str, names: Sequence[str], pairs: Sequence[str]) -> list[str]:
    named = (word for name in names for word in ("--served-model-name", name))
    chosen = (word for pair in pairs for word in ("--option", pair))
    return [model, *named, *chosen]


def _check_paths(task: Task) -> None:
    for flag, path in (("--input-file", task.source), ("--output-file", task.target)):
        if "://" in path:
            raise ConfigError(
                f"{flag} {path!r} is not allowed: a file of this machine; fetch or send it with "
                "another tool"
            )
    if os.path.realpath(task.source) == os.path.realpath(task.target):
        raise ConfigError(f"--output-file {task.target!r} is the input file too")
    if not os.path.isfile(task.source):
        raise ConfigError(f"--input-file {task.source!r} is not there, or no file")


def _count(task: Task, progress: Progress) -> int:
    """How many lines there are. Raises `ConfigError` for an output of another batch."""
    ids, bad = set(), set()
    for number, item in _lines(task, None):
        if isinstance(item, BadLine):
            bad.add(number)
        else:
            ids.add(item.custom_id)
    for strange in (*sorted(progress.answered - ids), *sorted(progress.refused - bad)):
        raise ConfigError(
            f"--output-file {task.target!r} answers {strange!r}, which --input-file "
            f"{task.source!r} does not ask: it is the output of another batch"
        )
    return len(ids) + len(bad)


def _lines(task: Task, model: str | None) -> Iterator[tuple[int, Job | BadLine]]:
    with open(task.source, "rb") as file:
        yield from jobs(file, model)


@contextmanager
def _output(path: str, *, retry_failed: bool) -> Iterator[tuple[BinaryIO, Progress]]:
    """The file, which no other run has, and what it holds. Raises `ConfigError`."""
    with ExitStack() as stack:
        out = stack.enter_context(_locked(path))
        progress = read_output(path, retry_failed=retry_failed)
        if retry_failed:  # the file is a new one now
            out = stack.enter_context(_locked(path))
        yield out, progress
        os.fsync(out.fileno())


@contextmanager
def _locked(path: str) -> Iterator[BinaryIO]:
    try:
        file = open(path, "ab")  # noqa: SIM115  # closed below
    except OSError as error:
        raise ConfigError(f"--output-file {path!r} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--output-file {path!r} is being written by another run") from None
        yield file


async def _main(task: Task, words: Sequence[str], name: str, files: BatchFiles) -> int:
    loop = asyncio.get_running_loop()
    current = asyncio.current_task()
    assert current is not None
    loop.add_signal_handler(signal.SIGINT, current.cancel)
    try:
        await _answer(task, words, name, files)
    except asyncio.CancelledError:
        print(f"\nstopped: {files.meter.line()}; the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{files.meter.line()}", file=sys.stderr)
    progress = files.meter.progress
    if not progress.failed:
        return 0
    return EXIT_ALL_FAILED if progress.failed == progress.count else EXIT_SOME_FAILED


async def _answer(task: Task, words: Sequence[str], name: str, files: BatchFiles) -> None:
    if files.meter.progress.count == files.meter.total:
        return  # nothing to load a model for
    async with AsyncExitStack() as stack:
        if task.url is None:
            server = await stack.enter_async_context(own_server(words))
        else:
            server = Server.at(task.url, task.key)
        model = name if task.url is None else await _model(task, server)
        progress = files.meter.progress
        wire = Wire(server)
        stack.callback(wire.close)
        run = BatchRun(server, wire, files.out, progress, files.meter, task.retries)
        files.meter.start()
        await run.run(_todo(task, model, progress), task.at_once)


async def _model(task: Task, server: Server) -> str:
    async with server.client(seconds=60) as client:
        return await choose_model(client, server, task.model)


def _todo(task: Task, model: str, progress: Progress) -> Iterator[tuple[int, Job | BadLine]]:
    answered, refused = frozenset(progress.answered), frozenset(progress.refused)
    for number, item in _lines(task, model):
        done = number in refused if isinstance(item, BadLine) else item.custom_id in answered
        if not done:
            yield number, item
