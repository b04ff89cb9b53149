"""A person chats: the key, streams, stops, parameters, history."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = pytest.mark.accept


def test_the_page_asks_for_the_key_and_says_when_it_is_wrong(
    real: Any, visit: Callable[..., Any]
) -> None:
    page = (ui := visit(real)).page
    expect(page.locator("#banner")).to_contain_text("An API key is needed")
    page.click("#banner-action")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-fault")).to_be_visible()
    ui.keep("key")
    page.fill("#key", real.key)
    page.click("#key-save")
    expect(page.locator("#key-dialog")).to_be_hidden()
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#model")).to_have_value("SmolLM2")
    assert page.evaluate("JSON.stringify(localStorage)").find(real.key) < 0
    page.reload()
    expect(page.locator(".dot.ready")).to_be_visible()


def test_an_answer_streams_and_a_stop_ends_it_on_the_server(
    real: Any, visit: Callable[..., Any]
) -> None:
    page = (ui := visit(real, real.key)).page
    page.fill("#set-max_tokens", "900")
    page.fill("#set-temperature", "0")
    answer = ui.ask("Write a very long story about the sea, with many chapters.")
    expect(page.locator("#stop")).to_be_visible()
    lengths = []
    for _ in range(3):
        page.wait_for_function(
            "n => document.querySelector('.assistant .prose').textContent.length > n + 10",
            arg=lengths[-1] if lengths else 0,
        )
        lengths.append(len(answer.locator(".prose").inner_text()))
    assert lengths[0] < lengths[-1] and real.load() == 1
    ui.keep("streaming")
    page.keyboard.press("Escape")
    expect(answer).to_contain_text("You stopped this answer.")
    end = time.monotonic() + 5
    while real.load():
        assert time.monotonic() < end, "the server goes on"
        time.sleep(0.05)
    stopped = answer.locator(".prose").inner_text()
    time.sleep(0.5)
    assert answer.locator(".prose").inner_text() == stopped
    expect(page.locator("#send")).to_be_visible()


def test_parameters_and_the_system_prompt_go_with_the_request_and_more_can_be_asked_for(
    real: Any, visit: Callable[..., Any]
) -> None:
    page = (ui := visit(real, real.key)).page
    bodies: list[Any] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    page.fill("#system", "You answer in English.")
    for name, value in (("temperature", "0.5"), ("seed", "7"), ("max_tokens", "5")):
        page.fill(f"#set-{name}", value)
    page.fill("#stop-texts", "never\nat all")
    answer = ui.ask("Name the planets.")
    expect(answer).to_contain_text("The answer reached the limit of its length.")
    expect(answer.locator(".facts")).to_contain_text("5 tokens")
    first = answer.locator(".prose").inner_text()
    sent = bodies[0]
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0.5, 7, 5)
    assert sent["stop"] == ["never", "at all"] and "top_p" not in sent
    answer.get_by_title("Continue this answer").click()
    expect(answer.locator(".facts")).to_contain_text("10 tokens")
    assert bodies[1]["continue_final_message"] is True
    assert answer.locator(".prose").inner_text().startswith(first)
    answer.get_by_title("Answer again").click()
    expect(page.locator(".assistant .facts")).to_contain_text("5 tokens")
    assert page.locator(".assistant .prose").inner_text() == first, "the same seed, another answer"
    page.fill("#set-top_p", "7")
    ui.ask("more")
    assert len(bodies) == 3, "a value that is not allowed was sent"
    page.click("text=Reset parameters")
    expect(page.locator("#set-seed")).to_have_value("")


def test_conversations_outlive_the_page_and_can_be_edited_exported_and_deleted(
    real: Any, visit: Callable[..., Any], tmp_path: Path
) -> None:
    page = (ui := visit(real, real.key)).page
    page.fill("#set-max_tokens", "6")
    ui.ask("First question")
    ui.settle()
    ui.ask("Second question")
    ui.settle()
    text = page.locator("#messages").inner_text()
    page.keyboard.press("Alt+n")
    ui.ask("Another chat")
    ui.settle()
    page.reload()
    rows = page.locator(".chat")
    expect(rows).to_have_count(2)
    rows.filter(has_text="First question").locator(".open").click()
    expect(page.locator(".message")).to_have_count(4)
    assert page.locator("#messages").inner_text() == text
    expect(page.locator("#set-max_tokens")).to_have_value("6")
    page.locator(".user").first.hover()
    page.locator(".user").first.get_by_title("Edit and ask again").click()
    page.get_by_label("Edit the message").fill("Third question")
    page.click("text=Ask again")
    ui.settle()
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".user")).to_contain_text("Third question")
    with page.expect_download() as saved:
        page.click("#export-all")
    chats = json.loads(Path(saved.value.path()).read_text())["chats"]
    assert [chat["messages"][0]["content"] for chat in chats] == ["Third question", "Another chat"]
    rows.filter(has_text="First question").get_by_title("Delete").click()
    expect(rows).to_have_count(1)
    page.click("#toast >> text=Undo")
    expect(rows).to_have_count(2)
    page.locator(".current").get_by_title("Rename").click()
    page.keyboard.type("A better title")
    page.keyboard.press("Enter")
    expect(page.locator(".current")).to_contain_text("A better title")
    copy = tmp_path / "chats.json"
    copy.write_text(json.dumps({"chats": [{"messages": chats[0]["messages"]}, {"bad": 1}]}))
    page.set_input_files("#import-file", copy)
    expect(rows).to_have_count(3)
    page.fill("#search", "another")
    expect(rows).to_have_count(1)
