"""``pegboard run-batch``: bad lines, failures, and runs that go on where another was ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard.errors import ConfigError
from pegboard_client import batch_run
from pegboard_client.batch_lines import BadLine, jobs, read_output

Lines = list[dict[str, Any]]


def chat_line(name: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": name}]
    url = "/v1/chat/completions"
    return {"custom_id": name, "method": "POST", "url": url, "body": {"messages": messages, **body}}


@attrs.frozen
class Batch:
    """A batch's files, and the command over them."""

    source: Path
    target: Path
    command: Callable[..., int]

    def ask(self, *lines: Any) -> None:
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        self.source.write_text("".join(f"{text}\n" for text in texts))

    def run(self, *words: str) -> int:
        return self.command("run-batch", "-i", str(self.source), "-o", str(self.target), *words)

    def answers(self) -> Lines:
        return [json.loads(line) for line in self.target.read_text().splitlines()]


@pytest.fixture
def batch(run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setattr(batch_run, "_pause", lambda attempt: 0.001)
    return Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl", run)


def test_every_line_is_answered_in_openais_form(batch: Batch, fake: Any) -> None:
    plain = {"custom_id": "p", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    batch.ask(chat_line("a", model="fake", seed=3), "", plain)
    assert batch.run("--url", fake.url) == 0
    found = {answer["custom_id"]: answer for answer in batch.answers()}
    assert set(found["a"]) == {"id", "custom_id", "response", "error"}
    assert found["a"]["error"] is None and found["a"]["response"]["status_code"] == 200
    assert found["a"]["response"]["body"]["choices"][0]["message"]["content"] == "one two three"
    assert found["p"]["response"]["body"]["choices"][0]["text"] == "one two three"
    bodies = sorted(fake.bodies, key=lambda body: "prompt" in body)
    assert bodies[0]["seed"] == 3 and bodies[1] == {"prompt": "x", "model": "fake"}


BAD = [
    ("nonsense", "invalid_json", "no JSON"),
    ("[1]", "invalid_line", "no JSON object"),
    ('{"custom_id": "x"', "invalid_json", "no JSON"),
    ("[" * 5000, "invalid_json", "no JSON"),
    ({**chat_line("x"), "custom_id": 7}, "invalid_custom_id", "custom_id is 7, must be a text"),
    ({**chat_line("x"), "custom_id": ""}, "invalid_custom_id", "custom_id is ''"),
    ({**chat_line("x"), "method": "GET"}, "invalid_method", "method is 'GET', must be 'POST'"),
    ({**chat_line("x"), "url": "/v1/embeddings"}, "invalid_url", "embeddings are not built"),
    ({**chat_line("x"), "url": ["a"]}, "invalid_url", "allowed are /v1/chat/completions, /v1/comp"),
    ({**chat_line("x"), "body": None}, "invalid_body", "body is NoneType, must be an object"),
    (chat_line("x", stream=True), "invalid_body", "are not streamed"),
    (chat_line("good"), "duplicate_custom_id", "'good' stands on an earlier line too"),
]


def test_bad_lines_are_told_one_by_one_and_harm_no_other(batch: Batch, fake: Any) -> None:
    batch.ask(chat_line("good"), *(line for line, _, _ in BAD), chat_line("last"))
    assert batch.run("--url", fake.url) == 3
    answers = batch.answers()
    assert len(answers) == len(BAD) + 2 and len(fake.bodies) == 2
    told = {a["error"]["line"]: a["error"] for a in answers if a["error"]}
    for number, (_, code, message) in enumerate(BAD, 2):
        assert told[number]["code"] == code
        assert told[number]["message"].startswith(f"line {number}: ")
        assert message in told[number]["message"]
    assert batch.run("--url", fake.url) == 3  # nothing is left to do, and nothing was forgotten
    assert batch.answers() == answers and len(fake.bodies) == 2


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b'{"custom_id": "\xff"}\n')
    with file.open("rb") as lines:
        ((number, bad),) = jobs(lines, None)
    assert number == 1 and isinstance(bad, BadLine) and bad.code == "invalid_json"


def test_errors_of_the_server_are_answers_and_can_be_tried_again(batch: Batch, fake: Any) -> None:
    fake.statuses = [400, 500]
    batch.ask(chat_line("a"), chat_line("b"), chat_line("c"))
    assert batch.run("--url", fake.url, "--max-concurrency", "1") == 3
    found = {a["custom_id"]: a["response"] for a in batch.answers()}
    assert [found[name]["status_code"] for name in "abc"] == [400, 500, 200]
    assert found["a"]["body"]["error"]["message"] == "told to answer 400"
    assert batch.run("--url", fake.url) == 3 and len(fake.bodies) == 3
    assert batch.run("--url", fake.url, "--retry-failed") == 0
    assert len(fake.bodies) == 5
    assert sorted(a["custom_id"] for a in batch.answers()) == ["a", "b", "c"]


def test_all_failed_has_an_exit_code_of_its_own(batch: Batch, fake: Any) -> None:
    fake.statuses = [400, 400]
    batch.ask(chat_line("a"), chat_line("b"))
    assert batch.run("--url", fake.url) == 4


def test_a_server_that_is_busy_is_asked_again(batch: Batch, fake: Any) -> None:
    fake.statuses = [503, 429, 502]
    batch.ask(chat_line("a"))
    assert batch.run("--url", fake.url) == 0
    assert len(fake.bodies) == 4


def test_a_server_that_stays_busy_ends_the_run_and_the_next_goes_on(
    batch: Batch, fake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.statuses = [200, *[503] * 3]
    batch.ask(chat_line("a"), chat_line("b"))
    assert batch.run("--url", fake.url, "--retries", "2", "--max-concurrency", "1") == 1
    assert "answered 503: told to answer 503" in capsys.readouterr().err
    assert [a["custom_id"] for a in batch.answers()] == ["a"]
    assert batch.run("--url", fake.url) == 0
    assert [a["custom_id"] for a in batch.answers()] == ["a", "b"]


def test_no_more_requests_run_at_once_than_allowed(batch: Batch, fake: Any) -> None:
    fake.first_seconds = 0.02
    batch.ask(*(chat_line(f"{number}") for number in range(12)))
    assert batch.run("--url", fake.url, "--max-concurrency", "3") == 0
    assert fake.most == 3 and len(batch.answers()) == 12


def test_half_a_line_of_a_run_that_was_killed_is_cut_off(batch: Batch, fake: Any) -> None:
    batch.ask(chat_line("a"), chat_line("b"))
    assert batch.run("--url", fake.url) == 0
    whole = batch.target.read_bytes()
    for cut in (1, 20, whole.index(b"\n") - 1):
        batch.target.write_bytes(whole[: len(whole) - cut])
        assert batch.run("--url", fake.url) == 0
        assert sorted(a["custom_id"] for a in batch.answers()) == ["a", "b"]
    assert len(fake.bodies) == 5


def test_an_interrupt_keeps_what_was_answered(fake: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("".join(json.dumps(chat_line(f"{n}")) + "\n" for n in range(500)))
    fake.first_seconds = 0.02
    code = "import sys; from pegboard.cli import main; sys.exit(main())"
    words = ["run-batch", "-i", str(source), "-o", str(target), "--url", fake.url]
    command = [sys.executable, "-Ic", code, *words, "--max-concurrency", "4"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 30
        while not target.exists() or target.stat().st_size < 1000:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        assert process.stderr is not None
        told = process.stderr.read()
        assert process.wait(30) == 130
    assert "stopped: " in told and "of 500 done" in told and "the same command goes on" in told
    lines = target.read_bytes().splitlines(keepends=True)
    assert 0 < len(lines) < 500 and all(line.endswith(b"\n") for line in lines)


def test_an_output_of_something_else_is_left_alone(batch: Batch, fake: Any) -> None:
    batch.ask(chat_line("a"))
    batch.target.write_text("dear diary\n")
    with pytest.raises(ConfigError, match="line 1 is no line of a batch's output"):
        read_output(str(batch.target), retry_failed=False)
    assert batch.run("--url", fake.url) == 2
    assert batch.target.read_text() == "dear diary\n"
    batch.target.write_text('{"custom_id": "z", "response": {"status_code": 200}}\n')
    assert batch.run("--url", fake.url) == 2
    assert fake.bodies == []


def test_two_runs_do_not_write_one_output(
    batch: Batch, fake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    batch.ask(chat_line("a"))
    with batch.target.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert batch.run("--url", fake.url) == 2
    assert "is being written by another run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-i", "IN", "-o", "out"], "give --model MODEL to load one, or --url"),
        (["-i", "https://x/in", "-o", "out", "--url", "U"], "--input-file 'https://x/in' is not"),
        (["-i", "IN", "-o", "s3://x/out", "--url", "U"], "--output-file 's3://x/out' is not"),
        (["-i", "IN", "-o", "IN", "--url", "U"], "is the input file too"),
        (["-i", "nowhere", "-o", "out", "--url", "U"], "'nowhere' is not there"),
        (["-i", "IN", "-o", "no/such/out", "--url", "U"], "cannot be written"),
        (["-i", "IN", "-o", "out", "--url", "U", "--engine-option", "a=1"], "together with --url"),
        (["-i", "IN", "-o", "out", "--url", "U", "--model", "other"], "has no model 'other'"),
        (["-i", "IN", "-o", "out", "--url", "U", "--retry-faild"], "--retry-failed"),
    ],
)
def test_a_batch_that_cannot_be_run_is_refused(
    words: list[str],
    told: str,
    fake: Any,
    run: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text(json.dumps(chat_line("a")) + "\n")
    given = {"IN": "in", "U": fake.url}
    assert run("run-batch", *(given.get(word, word) for word in words)) == 2
    assert told in capsys.readouterr().err
    assert fake.bodies == []
