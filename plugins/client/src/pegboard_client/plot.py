"""A picture of a load, as SVG that any browser shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import attrs

from pegboard_client.figures import series
from pegboard_client.load import Outcome

__all__ = ["Curve", "Panel", "draw", "panels"]

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 24, 34, 44
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")
MOST_POINTS = 400


@attrs.frozen
class Curve:
    """A line through points."""

    name: str
    points: tuple[tuple[float, float], ...]


@attrs.frozen
class Panel:
    """One diagram; both axes begin at 0."""

    title: str
    x_title: str
    y_title: str
    curves: tuple[Curve, ...]


def panels(outcome: Outcome) -> list[Panel]:
    """Distributions of latencies, and tokens and requests over time."""
    good = [record for record in outcome.records if not record.error]
    first = [_shares("from sending", [record.ttft for record in good])]
    whole = [_shares("from sending", [record.e2el for record in good])]
    planned = [(record, record.scheduled) for record in good if record.scheduled is not None]
    if planned:
        first.append(_shares("from the schedule", [r.first - moment for r, moment in planned]))
        whole.append(_shares("from the schedule", [r.last - moment for r, moment in planned]))
    between = _shares("between pieces", [gap for record in good for gap in record.gaps])
    tokens, flying = series(outcome)
    return [
        Panel("Time to first token", "ms", "share of requests", tuple(first)),
        Panel("Time to the end", "ms", "share of requests", tuple(whole)),
        Panel("Inter-token latency", "ms", "share of gaps", (between,)),
        Panel("Output tokens per second", "s", "tokens", (_timeline("tokens", tokens),)),
        Panel("Requests under way", "s", "requests", (_timeline("requests", flying),)),
    ]


def _shares(name: str, seconds: list[float]) -> Curve:
    """The empirical distribution function, in milliseconds."""
    ordered = sorted(seconds)
    stride = max(1, len(ordered) // MOST_POINTS)
    places = sorted({*range(0, len(ordered), stride), *([len(ordered) - 1] if ordered else [])})
    return Curve(name, tuple((1000 * ordered[n], (n + 1) / len(ordered)) for n in places))


def _timeline(name: str, values: Sequence[float]) -> Curve:
    return Curve(name, tuple((second + 0.5, float(value)) for second, value in enumerate(values)))


def draw(title: str, shown: Sequence[Panel]) -> str:
    """All panels, two in a row."""
    rows = math.ceil(len(shown) / 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{rows * HEIGHT + 30}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{WIDTH}" y="20" text-anchor="middle" font-size="14">{escape(title)}</text>',
    ]
    for place, panel in enumerate(shown):
        x, y = place % 2 * WIDTH, place // 2 * HEIGHT + 30
        parts += [f'<g transform="translate({x},{y})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    points = [point for curve in panel.curves for point in curve.points]
    x_step, x_end = _scale(max((x for x, _ in points), default=1.0))
    y_step, y_end = _scale(max((y for _, y in points), default=1.0))
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [
        f'<text x="{WIDTH / 2:.0f}" y="20" text-anchor="middle" font-size="12">'
        f"{escape(panel.title)}</text>",
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(panel.x_title)}</text>",
        f'<text x="12" y="{HEIGHT / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {HEIGHT / 2:.0f})">{escape(panel.y_title)}</text>',
    ]
    for number in range(round(x_end / x_step) + 1):
        x = LEFT + across * number * x_step / x_end
        parts.append(_grid(x, TOP, x, TOP + up))
        parts.append(_label(x, TOP + up + 14, "middle", number * x_step))
    for number in range(round(y_end / y_step) + 1):
        y = TOP + up - up * number * y_step / y_end
        parts.append(_grid(LEFT, y, LEFT + across, y))
        parts.append(_label(LEFT - 6, y + 4, "end", number * y_step))
    for curve, colour in zip(panel.curves, COLOURS, strict=False):
        places = " ".join(
            f"{LEFT + across * x / x_end:.1f},{TOP + up - up * y / y_end:.1f}"
            for x, y in curve.points
        )
        parts.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
    return [*parts, *_legend(panel)]


def _legend(panel: Panel) -> list[str]:
    if len(panel.curves) < 2:
        return []
    return [
        f'<text x="{WIDTH - RIGHT - 6}" y="{HEIGHT - BOTTOM - 8 - 14 * place}" '
        f'text-anchor="end" fill="{colour}">{escape(curve.name)}</text>'
        for place, (curve, colour) in enumerate(zip(panel.curves, COLOURS, strict=False))
    ]


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        'stroke="#d8dee4" stroke-width="1"/>'
    )


def _label(x: float, y: float, anchor: str, value: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{value:g}</text>'


def _scale(largest: float) -> tuple[float, float]:
    """A round distance of lines, and the end of an axis that shows `largest`."""
    if not largest > 0:
        return 1.0, 1.0
    rough = largest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return step, step * math.ceil(largest / step * 0.9999)
