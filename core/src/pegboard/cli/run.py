"""``pegboard run``: one prompt, one streamed answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pegboard.api.params import SamplingParams
from pegboard.cli.options import (
    BackendOption,
    EventsOption,
    ExceptOption,
    ExtraArgsOption,
    LockOption,
    PlatformOption,
    PluginConfigOption,
    RanksOption,
    StrictOption,
    TransferOption,
    UnsafeOption,
    engine_flags,
    engine_options,
    loading_bar,
    read_extra_args,
)
from pegboard.cli.streams import read_input, say
from pegboard.errors import RequestError
from pegboard.logging import setup_logging

if TYPE_CHECKING:
    from pegboard.engine.llm import LLM
    from pegboard.engine.outputs import RequestOutput

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def run(
    model: Annotated[str, typer.Argument(help="A GGUF file, a checkpoint directory or a hub id.")],
    prompt: Annotated[str, typer.Argument(help="What to ask; '-' reads it from standard input.")],
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it is, without a chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 256,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy. Default: the model's.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the model's.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Default: the model's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto (default), float32 (exact), bfloat16 or float16.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt plus answer, in tokens.")
    ] = None,
    platform: PlatformOption = None,
    attention_backend: BackendOption = None,
    tensor_parallel_size: RanksOption = None,
    extra_args: ExtraArgsOption = None,
    kv_events_config: EventsOption = None,
    kv_transfer_config: TransferOption = None,
    strict_plugins: StrictOption = None,
    plugins_lock: LockOption = None,
    no_plugins_except: ExceptOption = None,
    plugin_config: PluginConfigOption = None,
    unsafe_plugins: UnsafeOption = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Further engine settings, name=value."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer only.")] = False,
) -> None:
    """Answer one prompt and stream the text."""
    from pegboard.engine.llm import LLM

    if quiet:
        setup_logging(level="ERROR")
    sampling = _sampling(max_tokens, temperature, top_p, top_k, seed, read_extra_args(extra_args))
    flags = engine_flags(locals())
    settings = engine_options(option or [], flags)
    text = read_input() if prompt == "-" else prompt
    with loading_bar(quiet) as progress, LLM(model, progress=progress, **settings) as llm:
        progress.finish()
        _answer(llm, text, system, raw, sampling, quiet)


def _sampling(
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    extra_args: dict[str, Any] | None,
) -> dict[str, Any]:
    """What was given, checked: a bad value is found before the model is loaded."""
    given: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "extra_args": extra_args,
    }
    sampling: dict[str, Any] = {
        "max_tokens": max_tokens,
        **{name: value for name, value in given.items() if value is not None},
    }
    SamplingParams(**sampling)
    return sampling


def _answer(
    llm: LLM, text: str, system: str | None, raw: bool, sampling: dict[str, Any], quiet: bool
) -> None:
    import msgspec

    params = msgspec.structs.replace(llm.get_default_sampling_params(), **sampling)
    prompt: Any = text if raw else llm.apply_chat_template(_messages(text, system))
    begin = time.perf_counter()
    first = begin
    last: RequestOutput | None = None
    for output in _printed(llm.stream(prompt, params)):
        if last is None:
            first = time.perf_counter()
        last = output
    print(flush=True)
    if last is None:
        return
    if last.outputs[0].error:
        raise RequestError(last.outputs[0].error)
    if not quiet:
        say(_summary(last, begin, first, time.perf_counter()))


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    user = {"role": "user", "content": text}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def _printed(outputs: Iterator[RequestOutput]) -> Iterator[RequestOutput]:
    """Pass outputs on, writing each new piece of text as it comes."""
    shown = 0
    for output in outputs:
        text = output.outputs[0].text
        sys.stdout.write(text[shown:])
        sys.stdout.flush()
        shown = len(text)
        if output.outputs[0].token_ids or output.outputs[0].error:
            yield output


def _summary(output: RequestOutput, begin: float, first: float, end: float) -> str:
    made = len(output.outputs[0].token_ids)
    rate = f"{(made - 1) / (end - first):.1f} tok/s" if made > 1 else "one token"
    reason = output.outputs[0].finish_reason
    return (
        f"[{len(output.prompt_token_ids)} prompt tokens, {made} output tokens, {rate}, "
        f"first token after {1000 * (first - begin):.0f} ms, finish: {reason}]"
    )
