"""``pegboard chat`` and ``pegboard complete``."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

import typer

from pegboard_client.conversation import Conversation
from pegboard_client.options import (
    DEFAULT_URL,
    EngineOption,
    KeyOption,
    UrlOption,
    engine_settings,
    same_source,
)
from pegboard_client.prompting import Reader
from pegboard_client.repl import Repl
from pegboard_client.server import Server
from pegboard_client.talkers import Talker, local_talker, remote_talker

__all__ = ["chat", "complete"]

EXIT_INTERRUPTED = 130

ModelArgument = Annotated[
    str | None,
    typer.Argument(help="A model to load; with --url, the name of one that is served."),
]
MaxTokensOption = Annotated[int | None, typer.Option(help="Most tokens of an answer.")]
TemperatureOption = Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's.")]
TopPOption = Annotated[float | None, typer.Option(help="Default: the model's.")]
TopKOption = Annotated[int | None, typer.Option(help="Default: the model's.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of the draws.")]
StopOption = Annotated[
    list[str] | None, typer.Option(help="A text that ends an answer; several may be given.")
]
TimeoutOption = Annotated[
    float | None, typer.Option(help="Longest silence of a server, in seconds. Default: any.")
]
QuickOption = Annotated[
    str | None, typer.Option("--quick", "-q", help="Ask this, show the answer and leave.")
]


def chat(
    model: ModelArgument = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    quick: QuickOption = None,
    max_tokens: MaxTokensOption = 1024,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    timeout: TimeoutOption = None,
    option: EngineOption = None,
) -> None:
    """Talk with a model: one that is loaded here, or with --url one that a server has.

    Without a model and an address, the server at http://127.0.0.1:8000 is asked. Ctrl-C stops an
    answer; /help shows the commands. Where standard input is no terminal, every line is a
    question, and the answers alone are printed.
    """
    sampling = _given(locals())
    source = _talker(model, url, api_key, timeout, option, sampling)
    raise typer.Exit(_talk(source, Conversation(system), quick))


def complete(
    model: ModelArgument = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    quick: QuickOption = None,
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    timeout: TimeoutOption = None,
    option: EngineOption = None,
) -> None:
    """Let a model go on with texts as they are, without a chat template; each stands for itself.

    Without a model and an address, the server at http://127.0.0.1:8000 is asked.
    """
    sampling = _given(locals())
    source = _talker(model, url, api_key, timeout, option, sampling)
    raise typer.Exit(_talk(source, None, quick))


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters that were given; a server and `SamplingParams` call them the same."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
    return {name: arguments[name] for name in names if arguments[name] not in (None, [])}


def _talker(
    model: str | None,
    url: str | None,
    api_key: str | None,
    timeout: float | None,
    option: list[str] | None,
    sampling: dict[str, Any],
) -> AbstractAsyncContextManager[Talker]:
    if url is None and model is not None:
        return local_talker(model, engine_settings(option or ()), sampling)
    same_source(url or DEFAULT_URL, option)
    return remote_talker(Server.at(url or DEFAULT_URL, api_key), model, sampling, timeout)


def _talk(
    source: AbstractAsyncContextManager[Talker], talk: Conversation | None, quick: str | None
) -> int:
    """The exit code: 1 if a question got no answer, unless a person at a terminal saw that."""
    loop = asyncio.new_event_loop()
    try:
        reader = Reader()
        talker = loop.run_until_complete(source.__aenter__())
        try:
            repl = Repl(talker, loop, talk, reader)
            if quick is None:
                repl.run()
            else:
                repl.ask(quick)
        finally:
            loop.run_until_complete(source.__aexit__(None, None, None))
        return 1 if repl.failed and not (reader.interactive and quick is None) else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
