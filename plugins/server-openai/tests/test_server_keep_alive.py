"""What streams say while a long prompt is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from pegboard.testing.checkpoints import write_tiny_model
from pegboard_server_openai.keep_alive import COMMENT, KeepAlive, kept_alive
from pegboard_server_openai.options import AppOptions

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}


@pytest.fixture(scope="module")
def late(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    """A step takes 0.2 s; streams say something after 0.05 s."""
    options = AppOptions(names=("tiny",), stream_keep_alive=0.05)
    return start(write_tiny_model(folders()), app=options, step_seconds=0.2)


@pytest.mark.parametrize(
    ("path", "body", "first"),
    [
        ("/v1/chat/completions", CHAT, "data: "),
        ("/v1/completions", {"prompt": "ab", "max_tokens": 2}, "data: "),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}, "event: response.output"),
    ],
)
def test_streams_of_openais_bring_comments_where_the_operator_wants_them(
    late: Any, path: str, body: dict[str, Any], first: str
) -> None:
    text = late.post(path, stream=True, **body).text
    assert ": keep-alive\n\n" in text.partition(first)[0]
    assert all(
        block.startswith((":", "data: ", "event: ")) for block in text.split("\n\n") if block
    )
    assert text.count("keep-alive") >= 4
    assert not text.rstrip().endswith("keep-alive")


def test_the_official_clients_pass_over_them(late: Any) -> None:
    with openai.OpenAI(base_url=f"{late.url}/v1", api_key="any") as api:
        chunks = list(api.chat.completions.create(**CHAT, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"
    with anthropic.Anthropic(base_url=late.url, api_key="any").messages.stream(**CHAT) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 2


def test_a_message_begins_with_pings_while_its_prompt_is_computed(late: Any) -> None:
    text = late.post("/v1/messages", stream=True, **CHAT).text
    kinds = [block.split("\n")[0].removeprefix("event: ") for block in text.strip().split("\n\n")]
    assert kinds[0] == "message_start" and kinds.count("message_start") == 1
    begun = kinds.index("content_block_start") if "content_block_start" in kinds else -3
    assert kinds[1:begun].count("ping") >= 2 and kinds[-1] == "message_stop"
    assert "keep-alive" not in text


class Sink:
    def __init__(self) -> None:
        self.told: list[bytes] = []

    async def send(self, message: Any) -> None:
        self.told.append(message["body"])


def test_without_silence_nothing_is_added_and_nothing_comes_after_the_end() -> None:
    async def main() -> list[bytes]:
        sink = Sink()
        async with kept_alive(sink.send, KeepAlive(0.1)) as send:
            for _ in range(10):
                await asyncio.sleep(0.03)
                await send({"body": b"x"})
        await asyncio.sleep(0.15)
        return sink.told

    assert asyncio.run(main()) == [b"x"] * 10


def test_a_stream_without_it_has_the_plain_send() -> None:
    async def main() -> bool:
        sink = Sink()
        async with kept_alive(sink.send, None) as send:
            return send == sink.send

    assert asyncio.run(main())
    assert COMMENT.startswith(b":") and COMMENT.endswith(b"\n\n")
