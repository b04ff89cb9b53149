"""Results: one JSON file per cell, a list of records with one figure each, and tables of them."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from gpubench.workloads import METRICS

REFERENCES: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("references.json").read_text(encoding="utf-8")
)
HEADINGS = ("model", "workload", "figure", "ours", "reference", "ratio", "scaled")


@attrs.frozen
class Variant:
    """A model in certain number formats."""

    model: str
    dtype: str = "auto"
    quantization: str = ""
    """Empty for none."""
    kv_cache_dtype: str = "auto"

    @property
    def name(self) -> str:
        """For tables and file names."""
        parts = [self.model]
        if self.dtype not in ("auto", "bfloat16"):
            parts.append(self.dtype)
        if self.quantization:
            parts.append(self.quantization)
        if self.kv_cache_dtype != "auto":
            parts.append(f"kv-{self.kv_cache_dtype}")
        return " ".join(parts)

    def reference(self, workload: str, metric: str) -> float | None:
        """The stored figure of the same model and weights, None if there is none."""
        if self.dtype not in ("auto", "bfloat16"):
            return None
        key = f"{self.model} {self.quantization}".strip()
        found: float | None = REFERENCES.get(key, {}).get(workload, {}).get(metric)
        return found


@attrs.frozen
class Book:
    """The records of one commit, in a folder."""

    folder: Path
    commit: str

    def path(self, variant: Variant, workload: str) -> Path:
        return self.folder / f"{variant.name.replace(' ', '-')}-{workload}.json"

    def has(self, variant: Variant, workload: str, *, checked: bool) -> bool:
        """The cell was run at this commit; with `checked`, by an engine that had passed."""
        records = read_records(self.path(variant, workload))
        return bool(records) and all(
            record["commit"] == self.commit and (not checked or record["checked"] is True)
            for record in records
        )

    def write(self, variant: Variant, workload: str, records: Sequence[Mapping[str, Any]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(records, indent=1) + "\n"
        self.path(variant, workload).write_text(text, encoding="utf-8")

    def all(self) -> list[dict[str, Any]]:
        """Records of all cells, of whatever commit."""
        return [
            record for path in sorted(self.folder.glob("*.json")) for record in read_records(path)
        ]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records of one file; none if it is absent or cut off."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found


def make_records(
    variant: Variant,
    workload: str,
    batch: int,
    runs: Sequence[Mapping[str, float]],
    shared: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """One record per metric, from the figures of each run. `shared` is put into every record:
    what is the same for all cells of an engine."""
    records = []
    for metric in runs[0]:
        figures = [run[metric] for run in runs]
        record = {
            "model": variant.model,
            "quantization": variant.quantization,
            "workload": workload,
            "batch": batch,
            "metric": metric,
            "figure": round(statistics.median(figures), 4),
            "unit": METRICS[metric].unit,
            "reference": variant.reference(workload, metric),
            "lowest": round(min(figures), 4),
            "highest": round(max(figures), 4),
            "runs": len(figures),
            "dtype": variant.dtype,
            "kv_cache_dtype": variant.kv_cache_dtype,
        }
        records.append({**record, **shared})
    return records


def ratio(record: Mapping[str, Any]) -> float | None:
    """How many times faster than the reference; None without one."""
    reference: float | None = record["reference"]
    figure: float = record["figure"]
    if not reference or not figure:
        return None
    lower = METRICS[record["metric"]].lower_is_better
    return reference / figure if lower else figure / reference


def scaled_ratio(record: Mapping[str, Any]) -> float | None:
    """The same if both had run on a card with equal ceilings."""
    plain, ceiling = ratio(record), METRICS[record["metric"]].ceiling
    if plain is None or ceiling is None:
        return plain
    share: float = REFERENCES["about"][ceiling] / record["ceilings"][ceiling]
    return plain * share


def row(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Cells under `HEADINGS`."""
    variant = Variant(*(record[f.name] for f in attrs.fields(Variant)))
    reference = record["reference"]
    figure = f"{_short(record['figure'])} {record['unit']}"
    if record["checked"] is False:
        figure += " (failed the check)"
    ratios = (ratio(record), scaled_ratio(record))
    return (
        variant.name,
        record["workload"],
        record["metric"],
        figure,
        "" if reference is None else _short(reference),
        *("" if value is None else f"{value:.3f}" for value in ratios),
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def text_table(rows: Iterable[Sequence[str]]) -> str:
    """Columns of equal width."""
    rows = [HEADINGS, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows)
    return "\n".join(line.rstrip() for line in lines)


def markdown_rows(records: Sequence[Mapping[str, Any]]) -> str:
    """Rows for ``docs/performance.md``, in the order of models and workloads."""
    lines = (
        f"| {' | '.join(row(record))} | {record['commit'][:12]} | {record['date']} |"
        for record in sorted(records, key=_place)
    )
    return "\n".join(lines)


def _place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    kind = record["workload"].partition("-")[0]
    format_ = (record["quantization"], record["kv_cache_dtype"])
    return (record["model"], format_, kind, record["batch"], list(METRICS).index(record["metric"]))


def versions() -> dict[str, str]:
    """Of what decides speed."""
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("pegboard-core", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        found["device"] = torch.cuda.get_device_name()
    return found


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def current_commit(root: Path) -> str:
    """The commit that is checked out; with changes, followed by a digest of them; without a
    repository, a digest of the sources alone."""
    head = _git(root, "rev-parse", "HEAD")
    if not head:
        digest = hashlib.sha256()
        for folder in ("core/src", "plugins", "plugin_*"):
            for path in sorted(root.glob(f"{folder}/**/*.py")):
                digest.update(path.read_bytes())
        return f"sources-{digest.hexdigest()[:12]}"
    changes = _git(root, "diff", "HEAD", "--", "core", "plugins", "plugin_*")
    return head + (f"+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else "")


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
