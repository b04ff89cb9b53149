"""``pegboard bench throughput``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import attrs
import typer

from pegboard.errors import ConfigError
from pegboard_client import bench_options as o
from pegboard_client.options import EngineOption, LoadingLine, engine_settings
from pegboard_client.report import as_json, write_text
from pegboard_client.samples import Sample, draw_samples

__all__ = ["bench_throughput"]

Model = Annotated[str, typer.Argument(help="A GGUF file, a checkpoint directory or a hub id.")]
Output = Annotated[str | None, typer.Option(help="File for the figures, JSON.")]
Json = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")]
Warmups = Annotated[int, typer.Option(help="Requests before those that are measured.", min=0)]


@attrs.frozen
class EngineTokens:
    """The tokeniser of a loaded model."""

    llm: Any
    """A `pegboard.LLM`."""

    async def vocabulary(self) -> Sequence[int]:
        """All ids that are no special ones; all ids without a tokeniser."""
        facts = self.llm.model.facts
        try:
            special = frozenset(self.llm.get_tokenizer().special_ids)
        except ValueError:  # a model without a tokeniser takes ids
            special = frozenset()
        return [i for i in range(facts.vocab_size) if i not in special]

    async def count(self, text: str) -> int:
        """Without special tokens."""
        return len(self.llm.get_tokenizer().encode(text, False))


def bench_throughput(
    model: Model,
    dataset_name: o.DatasetName = "random",
    dataset_path: o.DatasetPath = None,
    num_prompts: o.NumPrompts = 100,
    num_warmups: Warmups = 1,
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
    output_json: Output = None,
    as_one_object: Json = False,
    option: EngineOption = None,
) -> None:
    """Measure how fast a model answers many requests that are all there at the beginning.

    There is no server: the engine runs in this process. The data sets are those of bench serve.
    """
    from pegboard import LLM  # takes a while to import

    arguments = dict(locals())
    recipe = o.recipe_of(arguments, further=num_warmups)
    line = LoadingLine()
    with LLM(model, progress=line, **engine_settings(option or ())) as llm:
        line.finish()
        samples = asyncio.run(draw_samples(recipe, EngineTokens(llm)))
        if len(samples) <= num_warmups:
            raise ConfigError(f"--num-warmups {num_warmups} leaves no request to be measured")
        endless = o.ignores_eos(ignore_eos, recipe)
        _answer(llm, samples[:num_warmups], endless)
        found = _answer(llm, samples[num_warmups:], endless)
    result = {"model_id": model, "dataset_name": recipe.dataset, "seed": seed, **found}
    if output_json is not None:
        write_text(output_json, as_json(result))
    sys.stdout.write(as_json(result) if as_one_object else _table(result))


def _answer(llm: Any, samples: Sequence[Sample], endless: bool) -> dict[str, Any]:
    """Rates of one run over all samples; their names are those of vLLM's, and of bench serve."""
    from pegboard import SamplingParams

    if not samples:
        return {}
    params = [
        SamplingParams(temperature=0.0, max_tokens=sample.output_len, ignore_eos=endless)
        for sample in samples
    ]
    prompts = [_prompt(llm, sample) for sample in samples]
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    seconds = time.perf_counter() - begin
    inputs = sum(len(output.prompt_token_ids) for output in outputs)
    made = sum(len(item.token_ids) for output in outputs for item in output.outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(outputs),
        "total_num_tokens": inputs + made,
        "total_input_tokens": inputs,
        "total_output_tokens": made,
        "requests_per_second": len(outputs) / seconds,
        "tokens_per_second": (inputs + made) / seconds,
        "request_throughput": len(outputs) / seconds,
        "output_throughput": made / seconds,
        "total_token_throughput": (inputs + made) / seconds,
    }


def _prompt(llm: Any, sample: Sample) -> Any:
    messages = isinstance(sample.prompt, list) and isinstance(sample.prompt[0], dict)
    return llm.apply_chat_template(sample.prompt) if messages else sample.prompt


def _table(found: dict[str, Any]) -> str:
    rows = (
        ("requests", f"{found['num_requests']}"),
        ("input tokens", f"{found['total_input_tokens']}"),
        ("output tokens", f"{found['total_output_tokens']}"),
        ("seconds", f"{found['elapsed_time']:.2f}"),
        ("requests per second", f"{found['request_throughput']:.2f}"),
        ("output tokens per second", f"{found['output_throughput']:.1f}"),
        ("tokens per second in all", f"{found['total_token_throughput']:.1f}"),
    )
    return "".join(f"{name:<26} {value:>12}\n" for name, value in rows)
