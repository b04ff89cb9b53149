"""What a benchmark asks: requests drawn at random or read from a file."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from pegboard.errors import ConfigError

__all__ = ["DATASETS", "Recipe", "Sample", "Tokens", "draw_samples"]

DATASETS = ("custom", "prefix-repetition", "random", "sharegpt")


@attrs.frozen
class Sample:
    """One request."""

    prompt: str | list[int] | list[dict[str, Any]]
    """A text, token ids, or the messages of a chat."""
    output_len: int
    """Most tokens of the answer."""
    input_len: int | None = None
    """Tokens of the prompt where they are known; a server adds those of its chat template."""


class Tokens(Protocol):
    """The model's tokeniser, wherever it is."""

    async def vocabulary(self) -> Sequence[int]:
        """Ids that a prompt may have."""
        ...

    async def count(self, text: str) -> int:
        """How many tokens a text is."""
        ...


@attrs.frozen
class Recipe:
    """Which requests to make. Lengths are in tokens."""

    dataset: str
    path: str | None = None
    count: int = 1000
    seed: int = 0
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 0.0
    """Lengths are drawn from ``len * (1 - r)`` to ``len * (1 + r)``, both included."""
    prefix_len: int = 256
    suffix_len: int = 256
    num_prefixes: int = 10
    prefix_output_len: int = 128
    output_len: int | None = None
    """Of requests from files; None: as the file has it."""

    def __attrs_post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ConfigError(
                f"--dataset-name {self.dataset!r} is not allowed: {', '.join(DATASETS)}"
            )
        if self.dataset in ("custom", "sharegpt") and self.path is None:
            raise ConfigError(f"--dataset-name {self.dataset} needs --dataset-path")
        if not 0 <= self.random_range_ratio < 1:
            raise ConfigError(
                f"--random-range-ratio {self.random_range_ratio} is not allowed: from 0, below 1"
            )


async def draw_samples(recipe: Recipe, tokens: Tokens) -> list[Sample]:
    """`recipe.count` requests, the same for the same seed; fewer if a file has no more."""
    makers: Mapping[str, Callable[[Recipe, Tokens], Awaitable[list[Sample]]]] = {
        "custom": _custom,
        "prefix-repetition": _prefixes,
        "random": _random,
        "sharegpt": _sharegpt,
    }
    samples = await makers[recipe.dataset](recipe, tokens)
    if not samples:
        raise ConfigError(f"--dataset-path {recipe.path!r} has no request that can be used")
    return samples


async def _random(recipe: Recipe, tokens: Tokens) -> list[Sample]:
    """Independent ids, so that no prompt has its beginning in common with another."""
    draws, ids = random.Random(recipe.seed), await tokens.vocabulary()
    samples = []
    for _ in range(recipe.count):
        size = _near(draws, recipe.random_input_len, recipe.random_range_ratio)
        wanted = _near(draws, recipe.random_output_len, recipe.random_range_ratio)
        samples.append(Sample(draws.choices(ids, k=size), wanted, size))
    return samples


def _near(draws: random.Random, length: int, ratio: float) -> int:
    return draws.randint(max(1, int(length * (1 - ratio))), max(1, int(length * (1 + ratio))))


async def _prefixes(recipe: Recipe, tokens: Tokens) -> list[Sample]:
    """Prompts that begin with one of a few prefixes, in random order."""
    draws, ids = random.Random(recipe.seed), await tokens.vocabulary()
    starts = [draws.choices(ids, k=recipe.prefix_len) for _ in range(recipe.num_prefixes)]
    size = recipe.prefix_len + recipe.suffix_len
    order = [number % recipe.num_prefixes for number in range(recipe.count)]
    draws.shuffle(order)
    return [
        Sample(
            starts[place] + draws.choices(ids, k=recipe.suffix_len), recipe.prefix_output_len, size
        )
        for place in order
    ]


async def _sharegpt(recipe: Recipe, tokens: Tokens) -> list[Sample]:
    """First questions of conversations, with answers as long as those in the file.

    Passed over are pairs of which one has under 4 tokens, questions of over 1024 and pairs of over
    2048, as is usual with this data.
    """
    pairs = [pair for item in _json(recipe.path) for pair in _first_turns(item)]
    random.Random(recipe.seed).shuffle(pairs)
    samples: list[Sample] = []
    for question, answer in pairs:
        if len(samples) == recipe.count:
            break
        size = await tokens.count(question)
        wanted = recipe.output_len or await tokens.count(answer)
        if min(size, wanted) >= 4 and size <= 1024 and size + wanted <= 2048:
            samples.append(Sample(question, wanted, size))
    return samples


def _first_turns(item: Any) -> Iterator[tuple[str, str]]:
    turns = item.get("conversations") if isinstance(item, Mapping) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return
    question, answer = (
        turn.get("value") if isinstance(turn, Mapping) else "" for turn in turns[:2]
    )
    if isinstance(question, str) and isinstance(answer, str) and question and answer:
        yield question, answer


async def _custom(recipe: Recipe, tokens: Tokens) -> list[Sample]:
    """Lines with ``prompt`` (a text or token ids) or ``messages``, and perhaps ``output_len``; in
    the order of the file, or shuffled where a seed is given."""
    samples = []
    for number, line in enumerate(_read(recipe.path).splitlines(), 1):
        if line.strip():
            samples.append(_custom_line(line, f"{recipe.path}, line {number}", recipe.output_len))
    if recipe.seed:
        random.Random(recipe.seed).shuffle(samples)
    return samples[: recipe.count]


def _custom_line(line: str, where: str, output_len: int | None) -> Sample:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}") from None
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{where} is no JSON object")
    prompt = fields.get("prompt", fields.get("messages"))
    if not isinstance(prompt, (str, list)) or not prompt:
        raise ConfigError(f"{where} has neither a prompt nor messages")
    wanted = output_len or fields.get("output_len") or 128
    if not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"{where}: output_len {wanted!r} is not allowed: at least 1")
    return Sample(prompt, wanted)


def _json(path: str | None) -> list[Any]:
    try:
        content = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"--dataset-path {path!r} is no JSON: {error}") from None
    if not isinstance(content, list):
        raise ConfigError(f"--dataset-path {path!r} holds no list of conversations")
    return content


def _read(path: str | None) -> str:
    assert path is not None, "checked by the recipe"
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path {path!r} cannot be read: {error}") from None
