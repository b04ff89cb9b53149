"""A command whose standard streams are closed, full or narrow: no traceback, a true exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pegboard

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a Unix shell")

CODE = "import sys; from pegboard.cli import main; sys.exit(main())"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which ``$PEGBOARD`` is the command."""
    source = str(Path(pegboard.__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": source, "VLLM_PLUGINS": "", **environment}
    script = f"pegboard() {{ '{sys.executable}' -c '{CODE}' \"$@\"; }}; {line}"
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environ, check=False
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ("pegboard plugins list >&-", 1, "cannot write to standard output: it is closed"),
        ("pegboard plugins list >/dev/full", 1, "standard output: No space left on device"),
        ("pegboard run --help >/dev/full", 1, "standard output: No space left on device"),
        ("pegboard run ./no-model - <&-", 2, "standard input is closed"),
        ("set -o pipefail; pegboard plugins list | head -c 0; exit ${PIPESTATUS[1]}", 0, ""),
    ],
)
def test_what_is_wrong_with_a_stream_is_one_line(
    line: str, code: int, error: str, unbuffered: str
) -> None:
    done = shell(line, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == bool(error) and error in done.stderr


@pytest.mark.parametrize("end", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_an_answer_needs_neither_input_nor_standard_error(end: str) -> None:
    done = shell(f"pegboard --version {end}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pegboard ")


def test_an_error_keeps_its_code_where_it_cannot_be_told() -> None:
    for end in ("2>&-", "2>/dev/full", ">&- 2>&-"):
        assert shell(f"pegboard nothing {end}").returncode in (1, 2)


def test_files_opened_later_do_not_get_the_number_of_a_closed_stream() -> None:
    probe = (
        "import os; from pegboard.cli.streams import prepare_streams; prepare_streams(); "
        "print(min(os.open(os.devnull, os.O_RDONLY), 3))"
    )
    done = shell(f"'{sys.executable}' -c '{probe}' <&- 2>&-")
    assert done.stdout == "3\n"
