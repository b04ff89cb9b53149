"""The commands against real servers: a model that says what it is told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model

pytestmark = pytest.mark.accept

CODE = "import sys; from pegboard.cli import main; sys.exit(main())"
SCRIPT = "Hello, 😀!"
COUNT = 10_000
SMALL = "num_gpu_blocks_override=2000"


def command(*words: str) -> list[str]:
    return [sys.executable, "-Ic", CODE, *words]


@pytest.fixture
def server(scripted: Path) -> Iterator[str]:
    """The address of ``pegboard serve`` over the scripted model."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ("serve", str(scripted), "--port", str(port), "--served-model-name", "echo")
    with subprocess.Popen(command(*words, "-o", SMALL)) as process:
        end = time.monotonic() + 120
        while True:
            assert time.monotonic() < end and process.poll() is None
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def children_of(pid: int) -> list[int]:
    """All processes under it."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
    found, wave = [], [pid]
    while wave:
        wave = [child for child, parent in parents.items() if parent in wave]
        found += wave
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ten_thousand_lines_are_answered_once_though_the_run_is_killed_in_the_middle(
    tmp_path: Path,
) -> None:
    script = ByteVocabulary().ids(b"yes")
    model = write_scripted_model(tmp_path / "model", script, prompt_tokens=6)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bad = {17: "nonsense", 4000: '{"custom_id": "00001"}', 9999: "{}"}
    with source.open("w") as file:
        for number in range(COUNT):
            body = {"prompt": f"{number:06}", "max_tokens": 8, "temperature": 0}
            line = {"custom_id": f"{number:05}", "method": "POST", "url": "/v1/completions"}
            file.write(bad.get(number) or json.dumps({**line, "body": body}))
            file.write("\n")
    words = ("run-batch", "-i", str(source), "-o", str(target), "--model", str(model))
    words = (*words, "--engine-option", SMALL)
    with subprocess.Popen(command(*words)) as process:
        end = time.monotonic() + 600
        while not target.exists() or target.read_bytes().count(b"\n") < COUNT // 3:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        below = children_of(process.pid)
        assert len(below) >= 2
        process.kill()
    end = time.monotonic() + 60
    while any(map(alive, below)):
        assert time.monotonic() < end, "the server outlived the client"
        time.sleep(0.05)
    before = target.read_bytes().count(b"\n")
    assert before < COUNT
    done = subprocess.run(command(*words), stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert f"{COUNT} of {COUNT} done, {len(bad)} failed" in done.stderr
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(answers) == COUNT
    good = {a["custom_id"]: a["response"]["body"] for a in answers if a["response"]}
    assert len(good) == COUNT - len(bad)
    assert {body["choices"][0]["text"] for body in good.values()} == {"yes"}
    assert sorted(a["error"]["line"] for a in answers if a["error"]) == [n + 1 for n in sorted(bad)]


def test_a_server_is_talked_with_and_measured(
    server: str, terminal: Callable[..., Any], tmp_path: Path
) -> None:
    talk = terminal("chat", "--url", server, "--temperature", "0")
    talk.until("echo: /help")
    talk.until("> ")
    talk.type("hi\n")
    talk.until(SCRIPT)
    talk.type("/quit\n")
    assert talk.ended() == 0
    lengths = ("--random-input-len", "20", "--random-output-len", "10", "--num-prompts", "40")
    words = ("bench", "serve", "--url", server, *lengths, "--request-rate", "40", "--json")
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["completed"], found["total_input_tokens"]) == (40, 800)
    assert found["total_output_tokens"] == 400 and found["tokens_counted_by"] == "server"
    chats = ("--backend", "openai-chat", "--max-concurrency", "4", *words[2:])
    done = subprocess.run(command("bench", "serve", *chats), capture_output=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["completed"] == 40


def test_a_local_model_talks_on_a_terminal_and_its_process_ends(
    scripted: Path, terminal: Callable[..., Any]
) -> None:
    talk = terminal(
        "chat", str(scripted), "--temperature", "0", "-o", "num_gpu_blocks_override=300"
    )
    talk.until("> ", seconds=120)
    talk.type("hi\n")
    talk.until(SCRIPT)
    talk.until("> ")
    talk.type("\x04")
    assert talk.ended() == 0


def test_a_talk_that_is_left_leaves_no_process(
    scripted: Path, terminal: Callable[..., Any]
) -> None:
    talk = terminal("chat", str(scripted), "-o", SMALL)
    talk.until("> ", seconds=120)
    below = children_of(talk.process.pid)
    assert below
    os.kill(talk.process.pid, signal.SIGKILL)
    end = time.monotonic() + 30
    while any(map(alive, below)):
        assert time.monotonic() < end, "the engine outlived the talk"
        time.sleep(0.05)
