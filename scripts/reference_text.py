"""Markdown of the generated pages, from docstrings."""

from __future__ import annotations

import re

__all__ = ["cell", "code", "first", "flat", "listed", "paragraphs"]


def paragraphs(text: str | None) -> list[str]:
    """Paragraphs of a docstring as Markdown, each on one line; tables are left to the code."""
    parts = re.split(r"\n\s*\n", (text or "").rstrip())
    return [flat(part) for part in parts if part and "====" not in part]


def flat(paragraph: str) -> str:
    """A paragraph on one line; formulas, which are indented, as code spans."""
    lines = paragraph.splitlines()
    if len(lines) > 1 and all(line.startswith("    ") for line in lines):
        return ", ".join(code(line.strip()) for line in lines)
    return re.sub(r"\s+", " ", paragraph.strip()).replace("``", "`")


def first(text: str | None) -> str:
    """The first paragraph."""
    return next(iter(paragraphs(text)), "")


def cell(text: str) -> str:
    """Text for a table."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """A code span, or nothing."""
    return f"`{text}`" if text else ""


def listed(shown: str, text: str) -> str:
    """A list entry: code, and what it means."""
    return f"* `{shown}`" + (f": {text}" if text else "")
