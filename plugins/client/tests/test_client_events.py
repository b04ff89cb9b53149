"""Server-sent events out of bytes that come in any pieces."""

from __future__ import annotations

import pytest

from pegboard_client.sse import DONE, Events, read_frame

STREAM = 'data: {"a": "é"}\n\n: a comment\n\nevent: x\ndata:one\ndata: two\n\ndata: [DONE]\n\n'
FOUND = ['{"a": "é"}', "one\ntwo", "[DONE]"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_events_are_the_same_wherever_the_bytes_are_cut(line_end: str) -> None:
    data = STREAM.replace("\n", line_end).encode()
    for cut in range(len(data)):
        events = Events()
        found = [*events.feed(data[:cut]), *events.feed(data[cut:])]
        assert [event.decode() for event in found] == FOUND, cut
        assert events.rest == b""
    events = Events()
    slow = [event for place in range(len(data)) for event in events.feed(data[place : place + 1])]
    assert [event.decode() for event in slow] == FOUND
    assert slow[-1] == DONE


def test_what_is_no_event_is_kept_as_the_rest() -> None:
    events = Events()
    assert events.feed(b'{"error": ') == [] and events.feed(b"1}") == []
    assert events.rest == b'{"error": 1}'


@pytest.mark.parametrize(
    ("chunk", "bears", "shown"),
    [
        ('{"choices": [{"text": "a", "finish_reason": null}]}', True, "a"),
        ('{"choices": [{"text": "", "finish_reason": null}]}', True, ""),
        ('{"choices": [{"text": "a", "finish_reason": "stop"}]}', True, "a"),
        ('{"choices": [{"text": "", "finish_reason": "stop"}]}', False, ""),
        ('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}', False, ""),
        ('{"choices": [{"delta": {"role": "assistant", "content": "a"}}]}', True, "a"),
        ('{"choices": [{"delta": {"content": "a"}}]}', True, "a"),
        ('{"choices": [{"delta": {"reasoning_content": "a"}, "finish_reason": null}]}', True, ""),
        ('{"choices": [{"delta": {}, "finish_reason": "stop"}]}', False, ""),
        ('{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}', False, ""),
    ],
)
def test_a_chunk_tells_whether_it_bears_a_token(chunk: str, bears: bool, shown: str) -> None:
    frame = read_frame(chunk.encode())
    assert frame.bears_token is bears
    assert "".join(choice.shown for choice in frame.choices) == shown
