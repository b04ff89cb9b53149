"""``pegboard plugins doctor``, ``lock`` and ``verify``."""

from __future__ import annotations

import argparse
import os
import textwrap

from pegboard.errors import ConfigError
from pegboard.plugins import LoadPolicy
from pegboard.plugins.admission import admit
from pegboard.plugins.lock import (
    DEFAULT_FILE,
    Lock,
    allowlist_hint,
    differences,
    left_out,
    make_lock,
)

__all__ = ["doctor", "lock", "verify"]


def lock(options: argparse.Namespace, policy: LoadPolicy) -> int:
    """Write a lock of what is installed and admitted."""
    path = options.file or DEFAULT_FILE
    made = make_lock(admit(os.environ, policy).admitted)
    made.write(path)
    print(f"{path}: {_counts(made)} locked")
    return 0


def verify(options: argparse.Namespace, policy: LoadPolicy) -> int:
    """Print each difference from a lock; 1 if there is any."""
    path = options.file or DEFAULT_FILE
    wanted = Lock.read(path)
    admission = admit(os.environ, policy)
    found = list(differences(wanted, admission.admitted))
    blocked = [candidate.id for candidate in left_out(wanted, admission)]
    hint = allowlist_hint(wanted, found, admission) if found else None
    if options.json:
        print(_as_json(path, found, blocked, hint))
    elif found:
        print("\n".join(found))
        print(f"{path}: {_number(len(found), 'difference')}")
        if hint:
            print(hint)
    else:
        print(f"{path}: {_counts(wanted)} as locked")
        if blocked:
            names = ", ".join(blocked)
            print(f"Locked and not to load, for {admission.allowlist.setting}: {names}")
    return 1 if found else 0


def _as_json(path: str, found: list[str], blocked: list[str], hint: str | None) -> str:
    import json

    content = {
        "file": path,
        "as_locked": not found,
        "differences": found,
        "locked_and_blocked": blocked,
        "hint": hint or None,
    }
    return json.dumps(content, indent=2)


def doctor(options: argparse.Namespace, policy: LoadPolicy) -> int:
    """Print what is wrong; 1 if there is a problem, or a warning that counts."""
    from pegboard.plugins.doctor import examine

    if not options.timeout > 0:
        raise ConfigError(f"--timeout {options.timeout} is not allowed: above 0 seconds")
    report = examine(policy=policy, timeout=options.timeout)
    if options.json:
        import json

        print(json.dumps(report.as_dict(), indent=2))
    else:
        for finding in report.findings:
            text = f"{finding.severity}: {finding.check}: {finding.message}"
            print(textwrap.fill(text, width=110, subsequent_indent="  ", break_long_words=False))
        problems, warnings = len(report.problems), len(report.warnings)
        print(
            f"{_number(report.plugins, 'plugin')} examined: {_number(problems, 'problem')}, "
            f"{_number(warnings, 'warning')}"
        )
    return 1 if report.problems or (options.strict and report.warnings) else 0


def _counts(wanted: Lock) -> str:
    files = sum(map(len, wanted.files.values()))
    return f"{_number(len(wanted.plugins), 'plugin')}, {_number(files, 'file')}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
