"""``pegboard run`` and ``pegboard bench`` as a person uses them."""

from __future__ import annotations

import errno
import io
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pegboard.testing.checkpoints import ByteVocabulary, write_tiny_model

TEXT = "The quick brown fox. "
LONG = TEXT * 150
SMALL = ("-o", "num_gpu_blocks_override=300")
"""A model this small would otherwise get millions of cache blocks, which take seconds to make."""


Here = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str], one_thread: None) -> Iterator[Here]:
    """Runs a command line in this process, which has its libraries already."""
    from pegboard.cli.dispatch import run

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        code = run(words)
        said = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    root = logging.getLogger("pegboard")
    before = list(root.handlers), root.level, root.propagate
    yield call
    root.handlers[:], root.propagate = before[0], before[2]  # ours writes to a captured stream
    root.setLevel(before[1])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def speaker(scripted_folder: Any) -> str:
    """A model that answers the raw prompt "abc" with `LONG`."""
    return str(scripted_folder(ByteVocabulary().ids(LONG.encode()), 3))


def test_run_streams_an_answer_and_sums_it_up(pegboard: Any, smollm2_path: Path) -> None:
    words = ("run", str(smollm2_path), "The capital of France is", "--raw", "--max-tokens", "6")
    more = ("--temperature", "0", "--max-model-len", "256")
    outcome = pegboard(*words, *more, env={"OMP_NUM_THREADS": "2"})
    assert outcome.returncode == 0, outcome.stderr
    assert "Paris" in outcome.stdout
    assert outcome.stdout.endswith("\n") and "tok/s" not in outcome.stdout
    summary = outcome.stderr.strip().splitlines()[-1]
    for part in ("5 prompt tokens", "6 output tokens", "tok/s", "first token after", "finish: "):
        assert part in summary
    before = outcome.stderr.strip().splitlines()[:-1]
    assert len(before) <= 2 and all(len(line) < 1000 for line in before), before


def test_run_prints_the_answer_alone_when_quiet_and_reads_a_prompt_from_standard_input(
    speaker: str, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc"))
    outcome = here("run", speaker, "-", "--raw", "-q", "--max-tokens", str(len(TEXT)), *SMALL)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, TEXT + "\n", "")


def test_a_level_that_is_asked_for_holds_for_a_quiet_run_too(
    speaker: str, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEGBOARD_LOG_LEVEL", "DEBUG")
    outcome = here("run", speaker, "abc", "--raw", "-q", "--max-tokens", "1", *SMALL)
    assert "num_gpu_blocks_override asks for 300 blocks" in outcome.stderr


def test_run_writes_text_as_it_comes(pegboard: Any, speaker: str) -> None:
    """The first piece can be read long before the last, and a reader that leaves is no fault."""
    with pegboard.popen("run", speaker, "abc", "--raw", "--max-tokens", "3000", *SMALL) as process:
        first = process.stdout.read1(200)
        assert first and len(first) < len(LONG) // 2
        assert LONG.encode().startswith(first)
        process.stdout.close()  # as `head -c 1` does
        error = process.stderr.read().decode()
        process.wait(60)
    assert "Traceback" not in error and "BrokenPipe" not in error, error
    assert process.returncode in (0, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_end_from_outside_leaves_no_traceback_and_the_model_as_it_was(
    pegboard: Any, speaker: str, sent: int, code: int
) -> None:
    before = {path: path.read_bytes() for path in Path(speaker).iterdir()}
    with pegboard.popen("run", speaker, "abc", "--raw", "--max-tokens", "3000", *SMALL) as process:
        assert process.stdout.read(1)
        process.send_signal(sent)
        said = process.stdout.read()
        error = process.stderr.read().decode()
        process.wait(60)
    assert process.returncode == code, error
    assert {path: path.read_bytes() for path in Path(speaker).iterdir()} == before
    assert "Traceback" not in error and "KeyboardInterrupt" not in error
    assert len(said) < len(LONG) - 1, "it was interrupted before the end"


def test_bench_latency_reports_figures_that_agree(here: Here, tiny: str) -> None:
    sizes = {"batch-size": 2, "input-len": 24, "output-len": 9, "runs": 2}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    outcome = here("bench", "latency", tiny, *words, "--json", *SMALL)
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    for name, size in sizes.items():
        assert found[{"batch-size": "batch"}.get(name, name.replace("-", "_"))] == size
    assert 0 < found["ttft_s"] < found["total_s"]
    assert found["tpot_s"] == pytest.approx((found["total_s"] - found["ttft_s"]) / 8)
    assert found["prefill_tok_s"] == pytest.approx(2 * 24 / found["ttft_s"])
    assert found["decode_tok_s"] == pytest.approx(2 / found["tpot_s"])


def test_a_path_that_does_not_exist_is_named(here: Here, one_clear_line: Any) -> None:
    one_clear_line(here("run", "./no-such.gguf", "hi"), "./no-such.gguf", "no such file")


def test_a_directory_without_a_model_is_named(
    here: Here, one_clear_line: Any, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    outcome = here("run", str(tmp_path), "hi")
    one_clear_line(outcome, str(tmp_path), "config.json")
    assert "notes.txt" not in outcome.stderr


def test_a_pickle_checkpoint_is_refused_by_name(
    here: Here, one_clear_line: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    outcome = here("run", str(tmp_path), "hi")
    one_clear_line(outcome, "pytorch_model.bin", "pickle", "safetensors")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dtype", "int3"), ("dtype='int3'", "float32")),
        (("--max-model-len", "0"), ("max_model_len=0", "at least 1")),
        (("--max-model-len", "5000"), ("max_model_len=5000", "4096")),
        (("--max-tokens", "-1"), ("max_tokens=-1", "0 or more")),
        (("--max-tokens", "0"), ("max_tokens=0", "at least 1")),
        (("--temperature", "-1"), ("temperature=-1.0", "0 (greedy) or more")),
        (("--top-p", "2"), ("top_p=2.0", "at most 1")),
        (("-o", "block_size=7"), ("block_size=7", "16")),
        (("-o", "blok_size=8"), ("blok_size", "did you mean 'block_size'")),
        (("-o", "block_size"), ("name=value",)),
        (("-o", "seed=x"), ("seed='x'",)),
        (("-o", "board=x"), ("unknown engine option 'board'",)),
        (("-o", "model=x"), ("the model is an argument",)),
        (("--dtype", "auto", "-o", "dtype=float32"), ("dtype is given twice", "'auto'")),
        (("-o", "seed=1", "-o", "seed=2"), ("seed is given twice", "seed=2")),
        (("-o", "chat_template={{ x"), ("chat template", "not valid")),
        (("-o", "chat_template=chatml"), ("chat_template='chatml'", "default")),
    ],
)
def test_a_bad_value_is_one_clear_line(
    tiny: str, options: tuple[str, ...], said: tuple[str, ...], here: Here, one_clear_line: Any
) -> None:
    one_clear_line(here("run", tiny, "hi", *options, *SMALL), *said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "model", "hi", "--no-such-option"), "--no-such-option"),
        (("run", "model"), "prompt"),
        (("bench", "latency"), "model"),
        (("bench", "speed", "model"), "speed"),
        (("run", "model", "hi", "--max-tokens", "many"), "--max-tokens"),
    ],
)
def test_unknown_and_missing_words_are_bad_input(
    words: tuple[str, ...], said: str, here: Here
) -> None:
    outcome = here(*words)
    assert outcome.returncode == 2
    assert said in outcome.stderr.lower()
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [("output-len", 1), ("input-len", 0), ("batch-size", 0), ("runs", 0), ("warmup", -1)],
)
def test_bench_refuses_sizes_that_measure_nothing(
    option: str, value: int, here: Here, one_clear_line: Any
) -> None:
    outcome = here("bench", "latency", "./no-model", f"--{option}", str(value))
    one_clear_line(outcome, f"--{option} {value} is not allowed")


@pytest.mark.parametrize(
    "option", [("--temperature", "-1"), ("--top-p", "2"), ("--top-k", "-5"), ("--max-tokens", "0")]
)
def test_a_bad_sampling_value_is_found_before_the_model_is_looked_for(
    option: tuple[str, str], here: Here, one_clear_line: Any
) -> None:
    outcome = here("run", "./no-model", "hi", *option)
    one_clear_line(outcome, option[0][2:].replace("-", "_"), "is not allowed")


def test_a_setting_given_twice_with_one_value_is_given(here: Here, tiny: str) -> None:
    twice = ("--dtype", "float32", "-o", "dtype=float32", "--max-tokens", "1")
    assert here("run", tiny, "hi", *twice, *SMALL).returncode == 0


class FullStream(io.TextIOBase):
    """Takes what comes up to a point, then fails as a full disk does."""

    encoding = "utf-8"

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, text: str) -> int:
        self.room -= len(text)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(text)


@pytest.mark.parametrize("room", [0, 10])
def test_a_full_output_ends_an_answer_with_one_clear_line(
    room: int, speaker: str, here: Here, one_clear_line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", FullStream(room))
    outcome = here("run", speaker, "abc", "--raw", "--max-tokens", "40", *SMALL)
    one_clear_line(outcome, "cannot write to standard output", "No space left", code=1)


def test_a_closed_output_is_found_before_the_model_is_looked_for(
    here: Here, one_clear_line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    one_clear_line(here("run", "./no-model", "hi"), "standard output: it is closed", code=1)


def test_without_standard_error_the_answer_comes_all_the_same(
    speaker: str, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    outcome = here("run", speaker, "abc", "--raw", "--max-tokens", str(len(TEXT)), *SMALL)
    assert (outcome.returncode, outcome.stdout) == (0, TEXT + "\n")


def test_what_the_output_cannot_encode_is_replaced(
    scripted_folder: Any, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(scripted_folder(ByteVocabulary().ids("né€".encode()), 3))
    narrow = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(narrow, encoding="ascii"))
    outcome = here("run", model, "abc", "--raw", "--max-tokens", "6", *SMALL)
    assert (outcome.returncode, narrow.getvalue()) == (0, b"n??\n"), outcome.stderr


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        (None, "is closed"),
        (io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"), "is not text in utf-8"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_one_clear_line(
    stdin: Any, said: str, here: Here, one_clear_line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    one_clear_line(here("run", "./no-model", "-"), "standard input", said)


def test_an_argument_that_is_no_text_is_one_clear_line(
    tiny: str, here: Here, one_clear_line: Any
) -> None:
    one_clear_line(here("run", tiny, "a\udcff", *SMALL), "prompt is not valid Unicode")
