"""Two steps in flight: the same tokens as one, nothing told twice, nothing lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.errors import ConfigError
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_core import CoreRun, toy_core
from pegboard.testing.toy_engine import toy_request


def workload(seed: int) -> list[EngineRequest]:
    """Requests with everything that can end or shape them."""
    rng = random.Random(seed)
    stem = [rng.randrange(90) for _ in range(40)]
    requests = []
    for number in range(8):
        n, limit = rng.choice([1, 1, 3]), rng.randrange(1, 40)
        params = SamplingParams(
            n=n,
            temperature=1.0 if n > 1 else rng.choice([0.0, 1.0]),
            min_tokens=rng.randrange(limit),
            stop_token_ids=rng.sample(range(97), rng.choice([0, 4])),
            logprobs=rng.choice([None, 0]),
            prompt_logprobs=rng.choice([None, None, 0]),
            max_tokens=limit,
        )
        prompt = stem[: rng.randrange(40)] + [rng.randrange(90) for _ in range(1 + number)]
        for child in range(n):
            requests.append(
                toy_request(
                    f"{number}.{child}",
                    prompt,
                    limit,
                    params=params,
                    seed=number,
                    child=child,
                    parent=f"{number}.0" if child else None,
                    end_ids=rng.sample(range(97), rng.choice([0, 5])),
                )
            )
    return requests


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_the_same_with_and_without_overlap(seed: int) -> None:
    tight = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 24}
    told = {}
    for overlap in (True, False):
        engine = toy_core(overlap, **tight)
        told[overlap] = CoreRun(engine, workload(seed)).finish()
        assert (engine.overlapped > 40) is overlap, f"{engine.overlapped} steps overlapped"
        assert engine.stats().preemptions > 0
    for request in workload(seed):
        on, off = (told[overlap][request.request_id] for overlap in (True, False))
        assert on.token_ids == off.token_ids == toy_generate(request)
        assert (on.finish_reason, on.stop_reason) == (off.finish_reason, off.stop_reason)
        assert on.scores == off.scores


def test_a_token_sampled_after_the_end_is_dropped() -> None:
    executor = ToyExecutor()
    engine = toy_core(executor=executor)
    text = toy_generate(toy_request("x", [1, 2], 30))
    end = next(n for n in range(3, 30) if text[n] not in text[:n])
    told = CoreRun(engine, [toy_request("a", [1, 2], 30, end_ids=[text[end]])]).finish()["a"]
    assert told.token_ids == text[: end + 1]
    assert told.finish_reason == "stop"
    assert executor.counts.rows == end + 1 + 1, "one step too many was in flight"


def test_a_length_that_is_known_beforehand_wastes_no_step() -> None:
    executor = ToyExecutor()
    told = CoreRun(toy_core(executor=executor), [toy_request("a", [1, 2], 5)]).finish()["a"]
    assert len(told.token_ids) == 5
    assert executor.counts.rows == 5


@pytest.mark.parametrize("way", ["abort", "finish"])
@pytest.mark.parametrize("when", range(1, 9))
def test_a_request_dropped_while_its_step_is_in_flight_tells_nothing_more(
    way: str, when: int
) -> None:
    engine = toy_core(max_num_batched_tokens=16)
    run = CoreRun(engine, [toy_request(name, [ord(name)] * 30, 20) for name in "ab"])
    for _ in range(when):
        run.step()
    before = list(run.told["a"].token_ids)
    if way == "abort":
        run.take(engine.abort(["a"]))
        assert run.told["a"].finish_reason == "abort"
    else:
        engine.finish(["a"], "stop")
    run.add(toy_request("c", [3] * 30, 20))
    told = run.finish()
    assert told["a"].token_ids == before
    for name, prompt in (("b", [98] * 30), ("c", [3] * 30)):
        assert told[name].token_ids == toy_generate(toy_request(name, prompt, 20))
    assert engine.overlapped > 10


# Choice


class OneByOne(ToyExecutor):
    """An executor that cannot overlap."""

    max_in_flight = 1


def test_overlap_is_chosen_where_the_executor_can() -> None:
    assert toy_core(None).depth == 2
    assert toy_core(False).depth == 1


def test_without_the_ability_overlap_is_off_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[tuple[str, Any]] = []

    class Logger:
        def info(self, event: str, **facts: Any) -> None:
            said.append((event, facts.get("reason")))

        debug = info

    monkeypatch.setattr("pegboard.engine.build.get_logger", lambda name: Logger())
    engine = toy_core(None, executor=OneByOne())
    assert engine.depth == 1
    assert ("async scheduling is off", "OneByOne runs one step at a time") in said
    told = CoreRun(engine, [toy_request("a", [1], 8)]).finish()
    assert told["a"].token_ids == toy_generate(toy_request("a", [1], 8))


def test_overlap_that_is_asked_for_and_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"async_scheduling=True is not allowed.*OneByOne"):
        toy_core(True, executor=OneByOne())
    with pytest.raises(ConfigError, match="async_scheduling='yes' is not allowed: True, False"):
        EngineConfig(model="toy", async_scheduling="yes")


# Between steps


def test_a_reset_of_the_cache_finishes_what_is_in_flight_and_loses_no_token() -> None:
    engine = toy_core()
    run = CoreRun(engine, [toy_request("a", [1] * 20, 12, end_ids=[])])
    for _ in range(3):
        run.step()
    assert not engine.reset_prefix_cache(), "a request still uses blocks"
    told = run.finish()["a"]
    assert told.token_ids == toy_generate(toy_request("a", [1] * 20, 12))
    assert engine.reset_prefix_cache()


def test_a_reset_right_after_the_last_token_finds_no_step_in_the_way() -> None:
    engine = toy_core()
    text = toy_generate(toy_request("x", [1, 2], 30))
    run = CoreRun(engine, [toy_request("a", [1, 2], 30, end_ids=text[4:5])])
    while run.told["a"].finish_reason is None:
        run.step()
    assert engine.stats().used_blocks > 0, "a step is still in flight"
    assert engine.reset_prefix_cache()
