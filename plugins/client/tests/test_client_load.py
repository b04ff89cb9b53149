"""Arrival times, samples and figures: what a benchmark decides and computes."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pegboard.errors import ConfigError
from pegboard_client.arrivals import arrival_times
from pegboard_client.figures import METRICS, Wanted, figures, percentile, series
from pegboard_client.load import Outcome, Record
from pegboard_client.plot import draw, panels
from pegboard_client.report import table
from pegboard_client.samples import Recipe, Sample, draw_samples


class Words:
    """A token is a word."""

    async def vocabulary(self) -> Sequence[int]:
        return range(10, 500)

    async def count(self, text: str) -> int:
        return len(text.split())


def samples(**recipe: Any) -> list[Sample]:
    return asyncio.run(draw_samples(Recipe(**recipe), Words()))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_that_were_asked_for(burstiness: float) -> None:
    times = arrival_times(20_000, 8.0, burstiness, seed=1)
    gaps = [late - early for early, late in itertools.pairwise(times)]
    assert times[0] == 0.0 and min(gaps) >= 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 8, rel=0.05)
    spread = statistics.stdev(gaps) / statistics.fmean(gaps)
    assert spread == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_times_are_those_of_their_seed() -> None:
    assert arrival_times(5, 2.0, 1.0, 3) == arrival_times(5, 2.0, 1.0, 3)
    assert arrival_times(5, 2.0, 1.0, 3) != arrival_times(5, 2.0, 1.0, 4)
    assert arrival_times(3, math.inf, 1.0, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, -2)])
def test_rates_that_cannot_be_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError, match="is not allowed: above 0"):
        arrival_times(1, rate, burstiness, 0)


def test_random_requests_have_their_lengths_and_share_nothing() -> None:
    made = samples(dataset="random", count=50, random_input_len=20, random_output_len=7)
    assert {(len(s.prompt), s.input_len, s.output_len) for s in made} == {(20, 20, 7)}
    assert len({tuple(s.prompt[:3]) for s in made}) > 45
    assert all(10 <= token < 500 for s in made for token in s.prompt)
    assert made == samples(dataset="random", count=50, random_input_len=20, random_output_len=7)
    spread = samples(dataset="random", count=500, random_input_len=20, random_range_ratio=0.5)
    assert {len(s.prompt) for s in spread} == set(range(10, 31))


def test_repeated_beginnings_are_shared_evenly() -> None:
    recipe = {"prefix_len": 8, "suffix_len": 3, "num_prefixes": 4, "prefix_output_len": 2}
    made = samples(dataset="prefix-repetition", count=40, **recipe)
    starts = [tuple(sample.prompt[:8]) for sample in made]
    assert sorted(map(starts.count, set(starts))) == [10, 10, 10, 10]
    assert starts != sorted(starts, key=starts.index)
    assert len({tuple(sample.prompt) for sample in made}) == 40
    assert {(sample.input_len, sample.output_len) for sample in made} == {(11, 2)}


def test_conversations_give_question_and_length_of_the_answer(tmp_path: Path) -> None:
    def talk(*words: int) -> Any:
        return {"conversations": [{"from": "x", "value": "w " * count} for count in words]}

    file = tmp_path / "talks.json"
    odd = [{"conversations": [{"value": 3}, {"value": "a"}]}, {}, 7, talk(9)]
    fit = [talk(10, 20, 5), talk(1024, 1024)]
    unfit = [talk(3, 50), talk(50, 3), talk(1025, 10), talk(1000, 1050)]
    file.write_text(json.dumps([*odd, *unfit, *fit]))
    made = samples(dataset="sharegpt", path=str(file), count=9)
    assert sorted((s.input_len, s.output_len) for s in made) == [(10, 20), (1024, 1024)]
    fixed = samples(dataset="sharegpt", path=str(file), count=9, output_len=6)
    assert {s.output_len for s in fixed} == {6}
    assert (50, 6) in {(s.input_len, s.output_len) for s in fixed}


def test_lines_of_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    turns = [{"role": "user", "content": "b"}]
    lines = [{"prompt": "a"}, {"messages": turns, "output_len": 3}, {"prompt": [1, 2]}]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    made = samples(dataset="custom", path=str(file))
    assert made == [Sample("a", 128), Sample(turns, 3), Sample([1, 2], 128)]
    assert len(samples(dataset="custom", path=str(file), count=2)) == 2


@pytest.mark.parametrize(
    ("content", "dataset", "told"),
    [
        ("{", "custom", "line 1 is no JSON"),
        ("[1]", "custom", "line 1 is no JSON object"),
        ('{"prompt": ""}', "custom", "neither a prompt nor messages"),
        ('{"prompt": "a", "output_len": -1}', "custom", "output_len -1 is not allowed"),
        ("", "custom", "has no request that can be used"),
        ("{}", "sharegpt", "holds no list of conversations"),
        ("[", "sharegpt", "is no JSON"),
        (None, "custom", "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_told(
    content: str | None, dataset: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "data"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=told):
        samples(dataset=dataset, path=str(file))


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"dataset": "sonnet"}, "'sonnet' is not allowed: custom, prefix-repetition"),
        ({"dataset": "custom"}, "needs --dataset-path"),
        ({"dataset": "random", "random_range_ratio": 1.0}, "random-range-ratio 1.0"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(recipe: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Recipe(**recipe)


def record(sent: float, first: float, gaps: list[float], **more: Any) -> Record:
    ends = {"first": sent + first, "last": sent + first + sum(gaps), "gaps": gaps}
    tokens = {"input_tokens": 5, "output_tokens": len(gaps) + 1, "counted": True}
    return Record(sent, **{**ends, **tokens, **more})


OUTCOME = Outcome(
    (
        record(100.0, 0.1, [0.2, 0.2], scheduled=99.5),
        record(100.5, 0.3, [0.5, 0.5, 1.0], scheduled=100.5),
        record(101.0, 0.2, [], scheduled=101.0),
        Record(101.0, scheduled=101.0, error="status 500: x"),
    ),
    begin=100.0,
    end=102.8,
    cpu_seconds=0.28,
    loop_lags=(0.0, 0.001, 0.002),
)


def test_figures_are_what_the_records_say() -> None:
    found = figures(OUTCOME, Wanted.of_words("ttft,tpot,itl,e2el", "50,99.9", ["tpot:300"]))
    expected = {
        "duration": 2.8,
        "completed": 3,
        "failed": 1,
        "total_input_tokens": 15,
        "total_output_tokens": 8,
        "request_throughput": 3 / 2.8,
        "request_goodput": 2 / 2.8,
        "output_throughput": 8 / 2.8,
        "total_token_throughput": 23 / 2.8,
        "mean_ttft_ms": 200.0,
        "median_ttft_ms": 200.0,
        "std_ttft_ms": statistics.pstdev([100, 300, 200]),
        "p99.9_ttft_ms": 299.8,
        "mean_tpot_ms": (200 + 2000 / 3) / 2,
        "mean_itl_ms": 480.0,
        "median_itl_ms": 500.0,
        "p50_e2el_ms": 500.0,
        "mean_scheduled_ttft_ms": (600 + 300 + 200) / 3,
        "mean_scheduled_e2el_ms": (1000 + 2300 + 200) / 3,
        "mean_send_lag_ms": 500 / 3,
        "client_cpu_share": 0.1,
        "tokens_counted_by": "server",
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["notes"] == []


def test_tokens_and_requests_are_told_by_second() -> None:
    assert series(OUTCOME) == ([4.0, 3.0, 1.0], [1, 2, 1])
    spread = Outcome((record(0.0, 0.5, [1.0], output_tokens=10),), 0.0, 1.5, 0.0, ())
    assert series(spread) == ([5.0, 5.0], [1, 1])


def test_percentiles_lie_between_neighbours_in_proportion() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    assert [percentile(values, share) for share in (0, 50, 75, 100)] == [1.0, 3.0, 5.0, 8.0]
    inner = statistics.quantiles(values, n=100, method="inclusive")
    assert [percentile(values, share) for share in range(1, 100)] == pytest.approx(inner)
    assert percentile([], 50) == 0.0


def test_a_client_that_was_too_slow_says_so() -> None:
    slow = Outcome(OUTCOME.records, 100.0, 102.8, 2.5, (0.5,))
    (note,) = figures(slow, Wanted())["notes"]
    assert "bottleneck" in note and "89 %" in note
    late = Outcome(OUTCOME.records, 100.0, 102.8, 0.5, (0.5,))
    (note,) = figures(late, Wanted())["notes"]
    assert "too busy" in note and "500.0 ms late" in note


def test_tokens_that_no_server_counted_are_told() -> None:
    alone = Outcome((record(0.0, 0.1, [0.1], counted=False),), 0.0, 1.0, 0.0, ())
    found = figures(alone, Wanted())
    assert found["tokens_counted_by"] == "pieces" and "no usage" in found["notes"][0]


def test_nothing_answered_gives_zeros() -> None:
    none = Outcome((Record(0.0, error="x"),), 0.0, 1.0, 0.0, ())
    found = figures(none, Wanted())
    assert found["completed"] == 0 and found["mean_ttft_ms"] == 0.0
    assert "requests that failed" in table(found)
    ElementTree.fromstring(draw("none", panels(none)))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ttft,x", "50", []), "--percentile-metrics names 'x'; allowed are ttft"),
        (("ttft", "101", []), "--metric-percentiles '101'"),
        (("ttft", "a", []), "--metric-percentiles 'a'"),
        (("ttft", "50", ["itl:5"]), "--goodput 'itl:5'"),
        (("ttft", "50", ["ttft"]), "--goodput 'ttft'"),
        (("ttft", "50", ["ttft:-5"]), "--goodput 'ttft:-5'"),
    ],
)
def test_figures_that_there_are_not_are_refused(words: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Wanted.of_words(*words)


def test_the_table_shows_every_metric_and_percentile() -> None:
    text = table(figures(OUTCOME, Wanted(METRICS, (50.0, 99.9))))
    assert "p99.9" in text and text.count("the same, from the schedule") == 2
    assert "time between pieces" in text and "480.00" in text


def test_the_picture_is_well_formed_and_draws_every_curve() -> None:
    drawn = panels(OUTCOME)
    tree = ElementTree.fromstring(draw("a <b> & c", drawn))
    lines = [part for part in tree.iter() if part.tag.endswith("polyline")]
    assert len(lines) == sum(len(panel.curves) for panel in drawn) == 7
    (gap,) = drawn[2].curves
    assert gap.points[-1] == (pytest.approx(1000.0), 1.0)
    places = [tuple(map(float, pair.split(","))) for pair in lines[0].get("points", "").split()]
    assert places == sorted(places, key=lambda place: (place[0], -place[1]))
    assert all(60 <= x <= 444 and 34 <= y <= 256 for x, y in places)
