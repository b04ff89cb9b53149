"""``pegboard bench serve``."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import attrs
import httpx
import msgspec
import typer

from pegboard.errors import ConfigError
from pegboard_client import bench_options as o
from pegboard_client.arrivals import arrival_times
from pegboard_client.figures import Wanted, figures
from pegboard_client.load import Load, Outcome
from pegboard_client.options import DEFAULT_URL, KeyOption
from pegboard_client.plot import draw, panels
from pegboard_client.report import as_json, table, write_text
from pegboard_client.samples import Recipe, Sample, draw_samples
from pegboard_client.server import Server, ServerError, choose_model
from pegboard_client.server_tokens import ServerTokens
from pegboard_client.wire import Wire

__all__ = ["BACKENDS", "bench_serve"]

BACKENDS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}

Url = Annotated[str, typer.Option("--url", "--base-url", help="Address of the server.")]
Model = Annotated[str | None, typer.Option(help="Default: the first that the server lists.")]
Backend = Annotated[str, typer.Option(help="openai (completions) or openai-chat.")]
Endpoint = Annotated[str | None, typer.Option(help="Another path for the requests.")]
Rate = Annotated[float, typer.Option(help="Requests per second, sent whatever comes back; or inf.")]
Burstiness = Annotated[
    float, typer.Option(help="1: Poisson arrivals; less comes in bursts, more is steadier.")
]
Concurrency = Annotated[
    int | None, typer.Option(help="Most requests at once; alone, a closed loop.", min=1)
]
Warmups = Annotated[int, typer.Option(help="Requests before those that are measured.", min=0)]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
ExtraBody = Annotated[str | None, typer.Option(help="JSON object: further fields of each request.")]
Metrics = Annotated[str, typer.Option(help="Of ttft, tpot, itl, e2el, with commas.")]
Percentiles = Annotated[str, typer.Option(help="From 0 to 100, with commas.")]
Goodput = Annotated[
    list[str] | None,
    typer.Option(help="Goals in milliseconds, such as ttft:500 tpot:50, for the rate that counts."),
]
Goals = Annotated[list[str] | None, typer.Argument(hidden=True)]
SaveResult = Annotated[bool, typer.Option("--save-result", help="Keep the figures in a file.")]
SaveDetailed = Annotated[bool, typer.Option("--save-detailed", help="And each request's times.")]
ResultDir = Annotated[str, typer.Option(help="Folder of that file.")]
ResultFilename = Annotated[str | None, typer.Option(help="Its name. Default: of model and time.")]
Plot = Annotated[str | None, typer.Option(help="File for a picture, SVG.")]
Json = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")]
Label = Annotated[str | None, typer.Option(help="Stands in the figures.")]
Ready = Annotated[float, typer.Option(help="Seconds to wait until the server is ready.", min=0)]


@attrs.frozen
class Plan:
    """What is to be done, checked."""

    server: Server
    model: str | None
    path: str
    chat: bool
    recipe: Recipe
    """With the requests before the measured ones."""
    warmups: int
    rate: float
    burstiness: float
    max_concurrency: int | None
    fields: Mapping[str, Any]
    """Of every body."""
    wanted: Wanted
    ready_seconds: float


def bench_serve(
    goals: Goals = None,
    url: Url = DEFAULT_URL,
    model: Model = None,
    api_key: KeyOption = None,
    backend: Backend = "openai",
    endpoint: Endpoint = None,
    dataset_name: o.DatasetName = "random",
    dataset_path: o.DatasetPath = None,
    num_prompts: o.NumPrompts = 1000,
    request_rate: Rate = math.inf,
    burstiness: Burstiness = 1.0,
    max_concurrency: Concurrency = None,
    num_warmups: Warmups = 0,
    seed: o.Seed = 0,
    random_input_len: o.RandomInputLen = 1024,
    random_output_len: o.RandomOutputLen = 128,
    random_range_ratio: o.RandomRangeRatio = 0.0,
    prefix_repetition_prefix_len: o.PrefixLen = 256,
    prefix_repetition_suffix_len: o.SuffixLen = 256,
    prefix_repetition_num_prefixes: o.NumPrefixes = 10,
    prefix_repetition_output_len: o.PrefixOutputLen = 128,
    output_len: o.OutputLen = None,
    ignore_eos: o.IgnoreEos = None,
    temperature: Temperature = 0.0,
    extra_body: ExtraBody = None,
    percentile_metrics: Metrics = "ttft,tpot,itl,e2el",
    metric_percentiles: Percentiles = "50,90,99",
    goodput: Goodput = None,
    save_result: SaveResult = False,
    save_detailed: SaveDetailed = False,
    result_dir: ResultDir = ".",
    result_filename: ResultFilename = None,
    plot: Plot = None,
    label: Label = None,
    ready_check_timeout_sec: Ready = 60.0,
    as_one_object: Json = False,
) -> None:
    """Measure a server under load, as its clients see it.

    With --request-rate requests are sent at random times whatever comes back, an open loop; with
    --max-concurrency alone, each waits for another to end. Prompts of random tokens are sent as
    token ids, so that their lengths are exact; other lengths are those that the server tells.
    """
    arguments = dict(locals())
    plan = _plan(arguments)
    found, outcome = asyncio.run(_measure(plan))
    head = {"date": datetime.now().strftime("%Y%m%d-%H%M%S"), "backend": backend, "label": label}
    result = {**head, **_settings(plan, arguments), **found}
    if save_result or save_detailed:
        name = result_filename or f"{backend}-{_safe(result['model_id'])}-{head['date']}.json"
        detailed = {**result, **_details(outcome)} if save_detailed else result
        write_text(f"{result_dir}/{name}", as_json(detailed))
    if plot is not None:
        write_text(plot, draw(f"{result['model_id']}, {plan.server.base}", panels(outcome)))
    sys.stdout.write(as_json(result) if as_one_object else f"{table(result)}\n")
    for error in dict.fromkeys(record.error for record in outcome.records if record.error):
        print(f"failed: {error}", file=sys.stderr)
        break
    raise typer.Exit(1 if result["failed"] else 0)


def _plan(given: Mapping[str, Any]) -> Plan:
    """Raises `ConfigError`."""
    if given["backend"] not in BACKENDS:
        raise ConfigError(
            f"--backend {given['backend']!r} is not allowed: {', '.join(sorted(BACKENDS))}"
        )
    if given["goals"] and not given["goodput"]:
        raise ConfigError(f"{given['goals'][0]!r} is no option; see 'pegboard bench serve --help'")
    goals = [pair for words in given["goodput"] or () for pair in words.split()]
    recipe = o.recipe_of(given, further=given["num_warmups"])
    arrival_times(0, given["request_rate"], given["burstiness"], 0)
    fields = {
        "temperature": given["temperature"],
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if o.ignores_eos(given["ignore_eos"], recipe) else {}),
        **_extra(given["extra_body"]),
    }
    return Plan(
        server=Server.at(given["url"], given["api_key"]),
        model=given["model"],
        path=given["endpoint"] or BACKENDS[given["backend"]],
        chat=given["backend"] == "openai-chat",
        recipe=recipe,
        warmups=given["num_warmups"],
        rate=given["request_rate"],
        burstiness=given["burstiness"],
        max_concurrency=given["max_concurrency"],
        fields=fields,
        wanted=Wanted.of_words(
            given["percentile_metrics"],
            given["metric_percentiles"],
            [*goals, *(given["goals"] or ())],
        ),
        ready_seconds=given["ready_check_timeout_sec"],
    )


def _extra(text: str | None) -> dict[str, Any]:
    try:
        found = {} if text is None else json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"--extra-body {text!r} is not allowed: a JSON object")
    return found


async def _measure(plan: Plan) -> tuple[dict[str, Any], Outcome]:
    async with plan.server.client(seconds=60) as client:
        model = await _when_ready(client, plan)
        tokens = ServerTokens(plan.server, client, model)
        samples = await draw_samples(plan.recipe, tokens)
        bodies = [await _body(plan, sample, model, tokens) for sample in samples]
    first, measured = bodies[: plan.warmups], bodies[plan.warmups :]
    if not measured:
        raise ConfigError(
            f"--dataset-path {plan.recipe.path!r} has {len(bodies)} requests that can be used, no "
            f"more than --num-warmups {plan.warmups}"
        )
    wire = Wire(plan.server)
    try:
        outcome = await _run(plan, wire, first, measured)
    finally:
        wire.close()
    return {"model_id": model, **figures(outcome, plan.wanted)}, outcome


async def _when_ready(client: httpx.AsyncClient, plan: Plan) -> str:
    """The model's name, when the server is there. Raises `ServerError` if it does not come."""
    end, told = time.monotonic() + plan.ready_seconds, False
    while True:
        try:
            return await choose_model(client, plan.server, plan.model)
        except ServerError as error:
            if error.status not in (0, 503) or time.monotonic() >= end:
                raise
            if not told:
                print(f"waiting for the server: {error}", file=sys.stderr, flush=True)
                told = True
        await asyncio.sleep(0.5)


async def _body(plan: Plan, sample: Sample, model: str, tokens: ServerTokens) -> bytes:
    prompt = sample.prompt
    messages = isinstance(prompt, list) and isinstance(prompt[0], dict)
    if messages and not plan.chat:
        raise ConfigError("a request with messages needs --backend openai-chat")
    content: dict[str, Any] = {"prompt": prompt}
    if plan.chat:
        if isinstance(prompt, list) and not messages:
            prompt = await tokens.text([token for token in prompt if isinstance(token, int)])
        user = [{"role": "user", "content": prompt}]
        content = {"messages": prompt if messages else user}
    return msgspec.json.encode(
        {"model": model, **content, "max_tokens": sample.output_len, **plan.fields}
    )


async def _run(
    plan: Plan, wire: Wire, first: Sequence[bytes], measured: Sequence[bytes]
) -> Outcome:
    load = Load(wire, plan.path, plan.max_concurrency, shown=sys.stderr.isatty())
    if first:
        warm = await Load(wire, plan.path, plan.max_concurrency or 8).run(
            first, [0.0] * len(first), open_loop=False
        )
        for record in warm.records:
            if record.error:
                raise ServerError(f"a request before the measured ones failed: {record.error}")
    times = arrival_times(len(measured), plan.rate, plan.burstiness, plan.recipe.seed)
    outcome = await load.run(measured, times, open_loop=math.isfinite(plan.rate))
    if load.shown:
        sys.stderr.write("\r\x1b[K")
    return outcome


def _settings(plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, for the record."""
    return {
        "endpoint_type": given["backend"],
        "url": plan.server.base,
        "endpoint": plan.path,
        "tokenizer_id": None,
        "dataset_name": plan.recipe.dataset,
        "num_prompts": plan.recipe.count - plan.warmups,
        "num_warmups": plan.warmups,
        "request_rate": plan.rate if math.isfinite(plan.rate) else "inf",
        "burstiness": plan.burstiness,
        "max_concurrency": plan.max_concurrency,
        "seed": plan.recipe.seed,
        "goodput": dict(plan.wanted.goodput),
        "request_fields": dict(plan.fields),
    }


def _details(outcome: Outcome) -> dict[str, Any]:
    """By request, in the order of their sending times; failed ones too."""
    records, begin = outcome.records, outcome.begin
    return {
        "input_lens": [record.input_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "start_times": [record.sent - begin for record in records],
        "scheduled_times": [
            None if record.scheduled is None else record.scheduled - begin for record in records
        ],
        "ttfts": [0.0 if record.error else record.ttft for record in records],
        "itls": [record.gaps for record in records],
        "e2els": [0.0 if record.error else record.e2el for record in records],
        "errors": [record.error for record in records],
    }


def _safe(name: str) -> str:
    """As part of a file's name."""
    last = name.rstrip("/").rpartition("/")[2]
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in last)
