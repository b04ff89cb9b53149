"""Real weights behind three APIs: all give the same answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from served import Served, serve

pytestmark = [pytest.mark.accept, pytest.mark.model]

QUESTION = "What is the capital of France? Answer briefly."
SYSTEM = "You are a helpful assistant."


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[Served]:
    real = ("--distributed-executor-backend", "local", "--platform", "cpu")
    served = serve(smollm2_path, *real, "--served-model-name", "smol", "--max-model-len", "1024")
    try:
        served.wait_ready()
        yield served
    finally:
        served.kill()


def test_three_apis_give_one_answer(server: Served) -> None:
    cold: dict[str, Any] = {"temperature": 0}
    user: list[Any] = [{"role": "user", "content": QUESTION}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as api:
        chat = api.chat.completions.create(
            model="smol",
            messages=[{"role": "system", "content": SYSTEM}, *user],
            max_tokens=24,
            **cold,
        )
        asked = {"model": "smol", "input": QUESTION, "instructions": SYSTEM, **cold}
        response = api.responses.create(**asked, max_output_tokens=24)
        with api.responses.stream(**asked, max_output_tokens=24) as stream:
            pieces = [e.delta for e in stream if e.type == "response.output_text.delta"]
    with (
        anthropic.Anthropic(base_url=server.url, api_key="any") as other,
        other.messages.stream(
            model="smol", max_tokens=24, system=SYSTEM, messages=user, extra_body=cold
        ) as told,
    ):
        said = "".join(told.text_stream)
        message = told.get_final_message()
    text = chat.choices[0].message.content
    assert text and "Paris" in text
    assert response.output_text == "".join(pieces) == said == text
    assert chat.usage is not None and response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    used = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert used == chat.usage.prompt_tokens
    assert message.usage.cache_read_input_tokens, "the same prompt was computed twice before"


def test_an_answer_goes_on_from_its_beginning(server: Served) -> None:
    begun: list[Any] = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    with anthropic.Anthropic(base_url=server.url, api_key="any") as api:
        found = api.messages.create(
            model="smol",
            max_tokens=8,
            messages=begun,
            stop_sequences=["."],
            extra_body={"temperature": 0},
        )
    assert str(found.content[0].to_dict()["text"]).startswith(" Paris")
    assert found.stop_reason in ("stop_sequence", "max_tokens")
