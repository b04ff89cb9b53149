"""What stands around the chat: plugins, metrics, refusals, a phone, the keyboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = pytest.mark.accept

METRICS = """# HELP vllm:num_requests_running x
vllm:num_requests_running{model_name="m",engine="0"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:generation_tokens_total{model_name="a"} %d
vllm:time_to_first_token_seconds_bucket{le="0.1"} 9
vllm:time_to_first_token_seconds_sum 3.0
vllm:time_to_first_token_seconds_count 12
"""


def test_plugins_and_metrics_are_shown(real: Any, visit: Callable[..., Any]) -> None:
    page = (ui := visit(real, real.key)).page
    page.click("#tab-plugins")
    card = page.locator(".plugin").filter(has_text="pegboard-model-llama")
    expect(card).to_contain_text("in use")
    page.fill("#plugin-filter", "webui")
    expect(page.locator(".plugin")).to_have_count(1)
    ui.keep("plugins")
    page.click("#tab-metrics")
    page.locator("#tab-metrics").press("ArrowLeft")
    expect(page.locator("#tab-settings")).to_be_focused()
    page.click("#tab-metrics")
    expect(page.locator("[data-metric=load], [data-metric=running]").first).to_have_text("0")
    page.locator("#tab-metrics").press("ArrowLeft")
    page.fill("#set-max_tokens", "12")
    page.click("#tab-metrics")
    ui.ask("Count to ten.")
    ui.settle()
    assert float(page.locator("[data-metric=tokens]").inner_text()) >= 1
    assert "s" in page.locator("[data-metric=first]").inner_text()
    ui.keep("metrics")


def test_metrics_in_prometheus_form_become_numbers_and_rates(
    hostile: Any, visit: Callable[..., Any]
) -> None:
    page = (ui := visit(hostile)).page
    made = iter(range(0, 10**6, 200))
    page.route("**/metrics", lambda route: route.fulfill(body=METRICS % next(made)))
    page.click("#tab-metrics")
    shown = {"running": "3", "waiting": "2", "cache": "25 %", "ttft": "250 ms"}
    for name, value in shown.items():
        expect(page.locator(f"[data-metric={name}]")).to_have_text(value)
    page.wait_for_function(
        "() => parseFloat(document.querySelector('[data-metric=generated]').textContent) > 50"
    )
    expect(page.locator(".spark polyline")).to_have_count(1)
    ui.keep("prometheus")


@pytest.mark.parametrize(
    ("status", "message", "shown"),
    [
        (429, "too many requests", "busy. Too many requests. Try again in 7 s"),
        (503, "the model is being loaded (43 %)", "still being loaded"),
        (400, "max_tokens=0 is not allowed", "refused. Max_tokens=0 is not allowed"),
    ],
)
def test_what_the_server_refuses_is_said_and_can_be_tried_again(
    hostile: Any,
    visit: Callable[..., Any],
    status: int,
    message: str,
    shown: str,
) -> None:
    page = (ui := visit(hostile)).page
    expect(page.locator(".dot.ready")).to_be_visible()
    text = json.dumps({"error": {"message": message, "code": "loading" if status == 503 else None}})

    def refuse(route: Any) -> None:
        route.fulfill(status=status, body=text, headers={"retry-after": "7"})

    page.route("**/v1/*", refuse)
    page.route("**/v1/chat/completions", refuse)
    answer = ui.ask("hi")
    expect(answer.locator(".fault-box")).to_contain_text(shown)
    if status == 503:
        expect(page.locator("#banner")).to_contain_text("43 %")
        expect(page.locator("#banner-progress")).to_have_attribute("value", "43")
    ui.keep(f"refused-{status}")
    page.unroute("**/v1/*")
    page.unroute("**/v1/chat/completions")
    expect(page.locator("#banner")).to_be_hidden()
    with page.expect_request("**/v1/chat/completions") as asked:
        answer.get_by_text("Try again", exact=True).click()
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "hi"}]
    ui.settle()
    expect(page.locator(".assistant .prose")).to_contain_text("Not markup")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_its_drawers_work_with_the_keyboard(
    hostile: Any, visit: Callable[..., Any], scheme: str
) -> None:
    page = (ui := visit(hostile, viewport={"width": 320, "height": 640}, color_scheme=scheme)).page
    ui.ask("hi")
    ui.settle()
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert not page.evaluate(wide)
    assert page.evaluate("document.getElementById('messages').scrollWidth") <= 320
    ui.keep(f"phone-{scheme}")
    page.locator("#toggle-panel").press("Enter")
    expect(page.locator("#panel")).to_be_visible()
    ui.keep(f"phone-panel-{scheme}")
    assert not page.evaluate(wide)
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(page.locator("#toggle-panel")).to_be_focused()
    page.click("#toggle-sidebar")
    expect(page.locator(".chat")).to_be_visible()
    ui.keep(f"phone-sidebar-{scheme}")
    page.locator(".chat .open").click()
    expect(page.locator("#sidebar")).to_be_hidden()


def test_the_keyboard_alone_is_enough(hostile: Any, visit: Callable[..., Any]) -> None:
    page = (ui := visit(hostile)).page
    expect(page.locator("#input")).to_be_focused()
    page.keyboard.type("hi")
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    ui.settle()
    expect(page.locator(".user .bubble")).to_have_text("hi")
    page.locator("#thread").focus()
    page.keyboard.press("/")
    expect(page.locator("#input")).to_be_focused()
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
