"""Markdown of the generated pages, from docstrings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

__all__ = ["blocks", "cell", "code", "first", "flat", "listed", "paragraphs"]


def blocks(docstring: str | None, language: str) -> Iterator[str]:
    """A docstring that has a section to itself: paragraphs, and as they stand tables and the code
    (of this language) below a line that ends with two colons."""
    for piece in re.split(r"(?m)((?:^(?:    .*)?\n)+)(?=^\S|\Z)", (docstring or "") + "\n"):
        if piece.startswith(("\n    ", "    ")):
            yield f"```{language}\n{textwrap.dedent(piece).strip()}\n```"
            continue
        for paragraph in re.split(r"\n\s*\n", piece.strip()):
            if "====" in paragraph:
                yield f"```text\n{paragraph}\n```"
            elif paragraph:
                yield re.sub("::$", ":", flat(paragraph))


def paragraphs(text: str | None) -> list[str]:
    """Paragraphs of a docstring as Markdown, each on one line; tables are left to the code."""
    parts = re.split(r"\n\s*\n", (text or "").rstrip())
    return [flat(part) for part in parts if part and "====" not in part]


def flat(paragraph: str) -> str:
    """A paragraph on one line; formulas, which are indented, as code spans, and entries of a list
    with semicolons between them."""
    lines = paragraph.splitlines()
    if len(lines) > 1 and all(line.startswith("    ") for line in lines):
        return ", ".join(code(line.strip()) for line in lines)
    if lines and all(line.startswith(("* ", "  ")) for line in lines):
        entries = re.split(r"(?m)^\* ", paragraph)[1:]
        return "; ".join(flat(entry).removesuffix(".") for entry in entries) + "."
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
