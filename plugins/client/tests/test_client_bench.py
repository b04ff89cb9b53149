"""``pegboard bench serve`` and ``pegboard bench throughput``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pegboard.testing.checkpoints import write_tiny_model

VLLM_NAMES = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
    *("request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed"),
    *("total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
    *("output_throughput", "total_token_throughput", "max_output_tokens_per_s"),
    "max_concurrent_requests",
    *(
        f"{head}_{metric}_ms"
        for head in ("mean", "median", "std", "p99")
        for metric in ("ttft", "tpot", "itl", "e2el")
    ),
}
"""As its benchmark of a server calls them."""
DETAILS = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"}


@pytest.fixture
def bench(
    run: Callable[..., int], fake: Any, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Runs the command and gives its figures."""

    def measure(*words: str, code: int = 0) -> dict[str, Any]:
        assert run("bench", "serve", "--url", fake.url, "--json", *words) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return measure


def test_figures_have_the_names_that_dashboards_know(
    bench: Callable[..., dict[str, Any]], fake: Any, tmp_path: Path
) -> None:
    fake.first_seconds, fake.gap_seconds = 0.05, 0.03
    picture = tmp_path / "new" / "load.svg"
    found = bench(
        *("--num-prompts", "6", "--random-input-len", "9", "--random-output-len", "4"),
        *("--request-rate", "50", "--goodput", "ttft:2000", "tpot:2000", "--seed", "5"),
        *("--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "a.json"),
        *("--plot", str(picture)),
    )
    kept = json.loads((tmp_path / "a.json").read_text())
    assert set(found) >= VLLM_NAMES and set(kept) >= VLLM_NAMES | DETAILS
    assert (found["completed"], found["failed"], found["model_id"]) == (6, 0, "fake")
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (42, 18)
    assert found["request_goodput"] == found["request_throughput"]
    assert 50 <= found["mean_ttft_ms"] < 1000
    assert 10 <= found["mean_itl_ms"] < 1000
    assert found["mean_e2el_ms"] >= 50 + 2 * 30
    assert found["mean_tpot_ms"] >= found["mean_itl_ms"] - 0.001
    assert found["mean_scheduled_ttft_ms"] >= found["mean_ttft_ms"]
    assert [len(gaps) for gaps in kept["itls"]] == [2] * 6
    ElementTree.parse(picture)
    body = fake.bodies[0]
    assert len(body["prompt"]) == 9 and all(2 <= token < 50 for token in body["prompt"])
    given = {"max_tokens": 4, "ignore_eos": True, "temperature": 0.0, "stream": True}
    assert given.items() <= body.items() and body["stream_options"] == {"include_usage": True}


def test_a_closed_loop_has_no_schedule_and_keeps_its_limit(
    bench: Callable[..., dict[str, Any]], fake: Any
) -> None:
    fake.first_seconds = 0.03
    found = bench("--num-prompts", "8", "--max-concurrency", "2", "--random-input-len", "3")
    assert fake.most == 2 and found["max_concurrent_requests"] == 2
    assert found["request_rate"] == "inf" and "mean_scheduled_ttft_ms" not in found


def test_an_open_loop_that_is_held_back_tells_what_users_would_wait(
    bench: Callable[..., dict[str, Any]], fake: Any
) -> None:
    fake.first_seconds = 0.1
    words = ("--num-prompts", "6", "--request-rate", "100", "--random-input-len", "3")
    found = bench(*words, "--max-concurrency", "1")
    assert found["median_ttft_ms"] < 300
    assert found["p99_scheduled_ttft_ms"] > 4.5 * 100
    assert found["p99_send_lag_ms"] > 350


def test_chats_are_made_of_random_words_or_of_messages(
    bench: Callable[..., dict[str, Any]], fake: Any, tmp_path: Path
) -> None:
    words = ("--backend", "openai-chat", "--num-prompts", "1")
    bench(*words, "--random-input-len", "5")
    (message,) = fake.bodies[0]["messages"]
    assert message["role"] == "user" and len(message["content"].split()) == 5
    turns = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"messages": turns}) + "\n")
    bench(*words, "--dataset-name", "custom", "--dataset-path", str(file), "--output-len", "3")
    assert fake.bodies[1]["messages"] == turns and fake.bodies[1]["max_tokens"] == 3
    assert "ignore_eos" not in fake.bodies[1]


def test_requests_before_the_measured_ones_are_others_and_not_counted(
    bench: Callable[..., dict[str, Any]], fake: Any
) -> None:
    found = bench("--num-prompts", "4", "--num-warmups", "3", "--random-input-len", "8")
    assert found["completed"] == 4 and found["num_prompts"] == 4
    assert len({tuple(body["prompt"]) for body in fake.bodies}) == 7


def test_requests_that_fail_are_counted_and_told(
    run: Callable[..., int], fake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.statuses = [400]
    words = ("--num-prompts", "3", "--random-input-len", "3", "--extra-body", '{"top_p": 0.5}')
    assert run("bench", "serve", "--url", fake.url, *words) == 1
    shown = capsys.readouterr()
    assert "requests that failed                                  1" in shown.out
    assert "failed: status 400: told to answer 400" in shown.err
    assert fake.bodies[0]["top_p"] == 0.5


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--backend", "tgi"], 2, "--backend 'tgi' is not allowed: openai, openai-chat"),
        (["--request-rate", "0"], 2, "--request-rate 0.0 is not allowed: above 0, or inf"),
        (["--extra-body", "[]"], 2, "--extra-body '[]' is not allowed: a JSON object"),
        (["stray"], 2, "'stray' is no option"),
        (["--goodput", "ttft:1", "stray"], 2, "--goodput 'stray' is not allowed"),
        (["--dataset-path", "x"], 2, "--dataset-path is not allowed together with"),
        (["--model", "other"], 2, "has no model 'other'; it serves fake"),
        (["--num-promts", "3"], 2, "--num-prompts"),
        (["--api-key", "wrong"], 1, "answered 401"),
        (["--url", "http://127.0.0.1:1", "--ready-check-timeout-sec", "0"], 1, "cannot reach"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str],
    code: int,
    told: str,
    run: Callable[..., int],
    fake: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake.key = "right"
    url = [] if "--url" in words else ["--url", fake.url]
    key = [] if "--api-key" in words else ["--api-key", "right"]
    assert run("bench", "serve", *url, *key, *words) == code
    assert told in capsys.readouterr().err
    assert fake.bodies == []


def test_a_model_is_measured_without_a_server(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_model(tmp_path / "model")
    out = tmp_path / "out.json"
    lengths = ("--random-input-len", "10", "--random-output-len", "6", "--num-prompts", "4")
    engine = ("-o", "num_gpu_blocks_override=300", "-o", "max_model_len=64", "-o", "platform=null")
    words = ("bench", "throughput", str(model), *lengths, *engine, "--output-json", str(out))
    assert run(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    assert (found["num_requests"], found["total_num_tokens"]) == (4, 64)
    assert found["total_output_tokens"] == 24
    assert found["tokens_per_second"] == pytest.approx(64 / found["elapsed_time"])
    talks = tmp_path / "talks.json"
    turns = [{"value": "one two three"}, {"value": "four five"}]
    talks.write_text(json.dumps([{"conversations": turns}]))
    data = ("--dataset-name", "sharegpt", "--dataset-path", str(talks), "--num-warmups", "0")
    assert run("bench", "throughput", str(model), *data, *engine) == 0
    text = capsys.readouterr().out
    assert f"input tokens {len('one two three'):>26}" in text
    assert "output tokens per second" in text
