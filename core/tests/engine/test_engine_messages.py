"""What two processes say to each other arrives as it was sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard import errors
from pegboard.api.params import SamplingParams
from pegboard.api.scheduler import CacheStats, SchedulerStats
from pegboard.api.scores import PromptLogprobs, TokenLogprobs
from pegboard.api.views import EngineOutput, EngineRequest, RequestEvent
from pegboard.config.engine import EngineConfig
from pegboard.config.plain import config_from_plain, plain_config
from pegboard.engine.messages import (
    Abort,
    Add,
    Answer,
    Batch,
    Call,
    Close,
    Failed,
    Finish,
    Problem,
    Progress,
    Ready,
    Start,
    pack,
    read_from_engine,
    read_start,
    read_to_engine,
)
from pegboard.plugins import load_plugins

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
ids = st.integers(0, 2**31 - 1)
floats = st.floats(allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | floats | names | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
maps = st.none() | st.dictionaries(names, plain, max_size=3)
params = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 10),
    n=st.integers(1, 5),
    top_k=st.integers(-1, 100),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.none() | names | st.lists(names, min_size=1, max_size=3),
    stop_token_ids=st.none() | st.lists(ids, max_size=3),
    logit_bias=st.none() | st.dictionaries(ids, st.floats(-200, 200), max_size=3),
    allowed_token_ids=st.none() | st.lists(ids, min_size=1, max_size=3),
    max_tokens=st.none() | st.integers(1, 2**31 - 1),
    logprobs=st.none() | st.integers(-1, 20),
    prompt_logprobs=st.none() | st.integers(-1, 20),
    ignore_eos=st.booleans(),
    extra_args=st.none() | st.dictionaries(names, st.none() | floats | names, max_size=2),
)
requests = st.builds(
    EngineRequest,
    request_id=names,
    prompt_ids=st.lists(ids, max_size=5),
    params=params,
    seed=st.integers(-(2**63), 2**63 - 1),
    end_ids=st.lists(ids, max_size=3),
    max_tokens=ids,
    arrival=floats,
    priority=st.integers(-(2**63), 2**63 - 1),
    parent=st.none() | names,
    child=ids,
    cache_salt=st.none() | names,
    adapter=st.none() | names,
    media=st.lists(st.tuples(ids, ids, st.binary()), max_size=2),
    kv_transfer=maps,
    encoder_tokens=ids,
)
scores = st.builds(
    TokenLogprobs, ids=st.lists(ids, max_size=3), logprobs=st.lists(floats, max_size=3), rank=ids
)
events = st.builds(
    RequestEvent, kind=st.sampled_from(["QUEUED", "SCHEDULED", "PREEMPTED"]), time=floats
)
outputs = st.builds(
    EngineOutput,
    request_id=names,
    token_ids=st.lists(ids, max_size=3),
    finish_reason=st.none() | st.sampled_from(["stop", "length", "abort", "error"]),
    stop_reason=st.none() | ids | names,
    logprobs=st.none() | st.lists(scores, max_size=2),
    prompt_logprobs=st.none()
    | st.builds(PromptLogprobs, first=ids, entries=st.lists(scores, max_size=2)),
    cached_tokens=ids,
    error=st.none() | names,
    events=st.lists(events, min_size=1, max_size=3),
    time=floats,
    kv_transfer=maps,
)
problems = st.builds(Problem, kind=names, text=names, field=st.none() | names)
statistics = st.builds(
    SchedulerStats,
    running=ids,
    waiting=ids,
    used_blocks=ids,
    total_blocks=ids,
    preemptions=ids,
    cache=st.builds(CacheStats, queried_tokens=ids, hit_tokens=ids, resets=ids),
    connector=st.dictionaries(names, floats, max_size=2),
)
to_engine = st.one_of(
    st.builds(Add, st.lists(requests, max_size=2)),
    st.builds(Abort, st.lists(names, max_size=2)),
    st.builds(Finish, st.lists(names, max_size=2), names),
    st.builds(Call, ids, names),
    st.just(Close()),
)
from_engine = st.one_of(
    st.builds(
        Batch,
        outputs=st.lists(outputs, max_size=2),
        refused=st.dictionaries(names, problems, max_size=2),
        stats=st.none() | statistics,
        busy=st.booleans(),
    ),
    st.builds(Answer, ids, plain, st.none() | problems),
    st.builds(Progress, ids, ids),
    st.builds(Ready, ids, st.dictionaries(names, st.lists(names, max_size=2)), st.just({})),
    st.builds(Failed, problems),
)


@settings(max_examples=60, deadline=None)
@given(to_engine)
def test_what_the_engine_is_told_arrives_as_it_was_sent(message: Any) -> None:
    assert read_to_engine(pack(message)) == message


@settings(max_examples=60, deadline=None)
@given(from_engine)
def test_what_the_engine_tells_arrives_as_it_was_sent(message: Any) -> None:
    assert read_from_engine(pack(message)) == message


def test_an_output_that_is_nothing_but_a_token_is_short() -> None:
    output = EngineOutput("17.0", [4711], time=1.5)
    assert len(pack(Batch([output]))) < 80
    found = read_from_engine(pack(Batch([output])))
    assert found == Batch([output])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stat_loggers": ["a", "b"], "plugin_config": {"a": {"b": [1, None]}}, "max_model_len": 7},
        {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "x", "address": "y"}},
        {"kv_transfer_config": {"kv_connector": "c", "kv_connector_extra_config": {"d": 1}}},
        {"kv_cache_dtype": "fp8", "dtype": "half", "logits_processors": "a,b", "watermark": 0.5},
    ],
)
def test_settings_and_plugins_arrive_as_they_are(options: dict[str, Any]) -> None:
    config = EngineConfig(model="m", **options)
    plan = load_plugins(role="front").plan
    start = read_start(pack(Start(plain_config(config), plan, 20, "in", "out")))
    assert config_from_plain(start.config) == config
    assert start.plan == plan


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_of_ours_arrives_by_its_class(name: str) -> None:
    error = getattr(errors, name)("what is wrong")
    found = Problem.of(error).error()
    assert type(found) is type(error)
    assert str(found) == "what is wrong"


def test_an_error_keeps_its_field_and_one_of_others_its_name() -> None:
    found = Problem.of(errors.RequestError("bad", field="top_k")).error()
    assert isinstance(found, errors.RequestError)
    assert found.field == "top_k"
    assert str(Problem.of(KeyError("x")).error()) == "KeyError: 'x'"
    assert type(Problem("NoSuchError", "text").error()) is errors.EngineDeadError
