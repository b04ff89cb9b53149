"""Options of the benchmarks, named as users of vLLM's know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
import typer

from pegboard.errors import ConfigError
from pegboard_client.samples import DATASETS, Recipe

__all__ = ["RECIPE_OPTIONS", "recipe_of"]

DatasetName = Annotated[str, typer.Option(help=f"One of {', '.join(DATASETS)}.")]
DatasetPath = Annotated[str | None, typer.Option(help="File of a custom or sharegpt data set.")]
NumPrompts = Annotated[int, typer.Option(help="Requests that are measured.", min=1)]
Seed = Annotated[int, typer.Option(help="Of the requests and their times.")]
RandomInputLen = Annotated[int, typer.Option(help="Prompt tokens of random requests.", min=1)]
RandomOutputLen = Annotated[int, typer.Option(help="Output tokens of random requests.", min=1)]
RandomRangeRatio = Annotated[
    float, typer.Option(help="Random lengths differ by this share at most, from 0, below 1.")
]
PrefixLen = Annotated[int, typer.Option(help="Tokens that prompts share.", min=1)]
SuffixLen = Annotated[int, typer.Option(help="Tokens after them, of each prompt.", min=1)]
NumPrefixes = Annotated[int, typer.Option(help="How many beginnings there are.", min=1)]
PrefixOutputLen = Annotated[int, typer.Option(help="Output tokens of such requests.", min=1)]
OutputLen = Annotated[
    int | None, typer.Option(help="Output tokens of requests from files. Default: as there.", min=1)
]
IgnoreEos = Annotated[
    bool | None,
    typer.Option(
        "--ignore-eos/--no-ignore-eos",
        help="Go on after an end token. Default: with made-up prompts only.",
    ),
]

RECIPE_OPTIONS: Mapping[str, str] = {
    "dataset_name": "dataset",
    "dataset_path": "path",
    "num_prompts": "count",
    "seed": "seed",
    "random_input_len": "random_input_len",
    "random_output_len": "random_output_len",
    "random_range_ratio": "random_range_ratio",
    "prefix_repetition_prefix_len": "prefix_len",
    "prefix_repetition_suffix_len": "suffix_len",
    "prefix_repetition_num_prefixes": "num_prefixes",
    "prefix_repetition_output_len": "prefix_output_len",
    "output_len": "output_len",
}
"""Argument of a command -> field of `Recipe`."""


def recipe_of(arguments: Mapping[str, Any], *, further: int = 0) -> Recipe:
    """What the arguments of a command ask for, and `further` requests. Raises `ConfigError`."""
    recipe = Recipe(**{field: arguments[name] for name, field in RECIPE_OPTIONS.items()})
    if recipe.path is not None and recipe.dataset not in ("custom", "sharegpt"):
        raise ConfigError(
            f"--dataset-path is not allowed together with --dataset-name {recipe.dataset}"
        )
    return attrs.evolve(recipe, count=recipe.count + further)


def ignores_eos(given: bool | None, recipe: Recipe) -> bool:
    """Made-up prompts get answers of a length that would else be an accident."""
    return recipe.dataset in ("random", "prefix-repetition") if given is None else given
