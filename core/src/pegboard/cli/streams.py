"""Standard input, output and error as they are: closed, full, or of a small character set."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

from pegboard.errors import ConfigError, ResourceError

__all__ = ["check_output", "output_fault", "prepare_streams", "read_input", "say"]

_WRITE_FAULTS = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF)
"""What writing to a stream fails with; errors of opening or reading files name the file."""


def prepare_streams() -> None:
    """Make the streams usable, before a command starts.

    A closed descriptor is opened on the null device, so that no file of ours gets its number and
    what a library writes there goes nowhere. What standard output cannot encode is replaced.
    """
    _fill_closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for good
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def check_output() -> None:
    """Raise `ResourceError` if standard output is closed: nothing could be said there."""
    if sys.stdout is None:
        raise ResourceError("cannot write to standard output: it is closed")


def output_fault(error: OSError) -> str | None:
    """Why standard output cannot be written to, if that is what `error` says, else None.

    It is then switched to the null device, so that the interpreter does not fail in its last flush.
    """
    fault = error if error.filename is None and error.errno in _WRITE_FAULTS else None
    try:
        sys.stdout.flush()
    except OSError as unwritten:  # what was left in the buffer
        fault = unwritten
    if fault is None:
        return None
    _silence(sys.stdout)
    return fault.strerror or str(fault)


def read_input() -> str:
    """All of standard input. Raises `ConfigError` if it is closed, cannot be read or is no text."""
    if sys.stdin is None:
        raise ConfigError("the prompt is '-', but standard input is closed")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the prompt is '-', but standard input is not text in {error.encoding}: "
            f"{error.reason} at byte {error.start}"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the prompt is '-', but standard input cannot be read: {error}"
        ) from error


def say(text: str) -> None:
    """Write a line to standard error; where nobody can read it, it is lost and nothing fails."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _silence(sys.stderr)


def _fill_closed() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the smallest free number
            if null != number:
                os.dup2(null, number)
                os.close(null)


def _silence(stream: TextIO) -> None:
    """Let a stream's descriptor lead to the null device."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
