"""What a model writes is text, whatever it is, and is shown at a good pace."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = pytest.mark.accept

_NAMES = """
A BLOCKQUOTE BR BUTTON CODE DIV EM H3 H4 H5 H6 HR INPUT LI OL P PATH PRE S SPAN STRONG SVG
TABLE TBODY TD TH THEAD TR UL
"""
ELEMENTS = frozenset(_NAMES.split())


def test_what_a_model_writes_is_text_whatever_it_is(
    hostile: Any, visit: Callable[..., Any]
) -> None:
    page = (ui := visit(hostile)).page
    answer = ui.ask("hi")
    ui.settle()
    prose = answer.locator(".prose")
    expect(prose.locator("h4")).to_have_text("Not markup <b>here</b>")
    names = prose.evaluate("n => [...n.querySelectorAll('*')].map(e => e.tagName.toUpperCase())")
    assert set(names) <= ELEMENTS
    expect(prose.locator("pre")).to_contain_text("<iframe srcdoc=")
    expect(prose.locator("td.align-right strong")).to_have_text("2")
    expect(prose.locator("ol > li ul input")).to_be_checked()
    links = prose.evaluate("n => [...n.querySelectorAll('a')].map(a => a.href)")
    assert links[:2] == ["https://example.org/a?b=1", "https://example.org/x.png"]
    assert all(link.startswith("https://example.org/") for link in links)
    events = "n => [...n.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
    assert not [name for name in prose.evaluate(events) if name.startswith("on")]
    assert page.evaluate("window.hit") is None
    ui.keep("attack")
    page.reload()
    expect(page.locator(".prose h4")).to_have_text("Not markup <b>here</b>")
    assert page.evaluate("window.hit") is None


def test_the_renderer_keeps_its_elements_and_its_pace_for_any_text(
    hostile: Any, visit: Callable[..., Any]
) -> None:
    page = visit(hostile).page
    rng = random.Random(5)
    bits = [
        "<script>",
        "](javascript:x)",
        "[",
        "]",
        "(",
        ")",
        "*",
        "**",
        "_",
        "~~",
        "`",
        "```\n",
        "\n",
    ]
    bits += [
        "> ",
        "- ",
        "1. ",
        "| a |",
        "|-|",
        "\n\n",
        "# ",
        "\\",
        "<http://a>",
        "http://b.c/",
        "&lt;",
    ]
    bits += ['"onload=x ', "word ", "    ", "![", "]: ", "\x00", "😀", "--- ", "[a](data:,x)"]
    texts = ["".join(rng.choices(bits, k=60)) for _ in range(1500)]
    texts += [bit * 20_000 for bit in bits]
    texts += ["[" * 9000 + "](http://a.b)" * 3000, "*a _b " * 9000, "> " * 9000, "- " * 9000]
    texts += ["https://a" + ")" * 50_000, "# " + " " * 50_000 + "x", "``" + "` " * 20_000]
    check = """async (texts) => {
        const { renderInto } = await import(new URL('ui/markdown.js', location.href));
        const tags = new Set(), schemes = new Set(), names = new Set();
        let slowest = [0, ''];
        for (const text of texts) {
            const root = document.createElement('div');
            const begin = performance.now();
            renderInto(root, text);
            const spent = performance.now() - begin;
            if (spent > slowest[0]) slowest = [spent, text.slice(0, 20)];
            for (const node of root.querySelectorAll('*')) {
                tags.add(node.tagName.toUpperCase());
                for (const name of node.getAttributeNames()) names.add(name);
                if (node.href) schemes.add(node.protocol);
            }
        }
        return [[...tags], [...schemes], [...names], slowest];
    }"""
    tags, schemes, names, slowest = page.evaluate(check, texts)
    assert {"A", "CODE", "TABLE", "STRONG"} <= set(tags) <= ELEMENTS
    assert set(schemes) <= {"http:", "https:", "mailto:"}
    assert not [name for name in names if name.startswith("on") or name in {"src", "style"}]
    assert slowest[0] < 2000, slowest


def test_growing_text_is_shown_as_the_whole_text_is(
    attack: str, hostile: Any, visit: Callable[..., Any]
) -> None:
    page = visit(hostile).page
    check = """async (text) => {
        const { renderInto } = await import(new URL('ui/markdown.js', location.href));
        const [grown, whole] = [document.createElement('div'), document.createElement('div')];
        let kept = 0, first = null;
        for (let n = 1; n <= text.length; n += 1) {
            renderInto(grown, text.slice(0, n));
            if (grown.firstChild === first) kept += 1;
            first = grown.firstChild;
        }
        renderInto(whole, text);
        return [grown.isEqualNode(whole), kept / text.length];
    }"""
    same, kept = page.evaluate(check, attack)
    assert same and kept > 0.8, "finished blocks were built anew"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_read_however_the_network_cuts_them(
    hostile: Any, visit: Callable[..., Any], end: str
) -> None:
    page = visit(hostile).page
    lines = [
        "data: one 😀",
        "",
        ": a comment",
        "event: x",
        "data: two",
        "data:three",
        "",
        "data: [DONE]",
    ]
    text = end.join([*lines, "", ""])
    check = """async ([text, size]) => {
        const { events } = await import(new URL('ui/sse.js', location.href));
        const bytes = new TextEncoder().encode(text);
        const body = new ReadableStream({
            start(controller) {
                for (let at = 0; at < bytes.length; at += size) {
                    controller.enqueue(bytes.slice(at, at + size));
                }
                controller.close();
            },
        });
        const found = [];
        for await (const data of events(body)) found.push(data);
        return found;
    }"""
    for size in (1, 2, 3, 7, 1000):
        found = page.evaluate(check, [text, size])
        assert found == ["one 😀", "two\nthree", "[DONE]"], size
