"""``/v1/completions`` and ``/v1/chat/completions`` as clients see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model, write_tiny_model
from pegboard_server_openai.sse import Frame, event

SCRIPT = "a \U0001f600b@@c".encode()
BYTES = ByteVocabulary()
EMPTY_CHAT = len("<user>hi\n<assistant>")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "xy", "temperature": 0, "max_tokens": 30}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def said(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    """Answers a prompt of two tokens with the script."""
    return start(write_scripted_model(folders(), BYTES.ids(SCRIPT), prompt_tokens=2))


@pytest.fixture(scope="module")
def chatty(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    """Answers the conversation `CHAT` with the script."""
    return start(write_scripted_model(folders(), BYTES.ids(SCRIPT), prompt_tokens=EMPTY_CHAT))


@pytest.fixture(scope="module")
def tiny(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    return start(write_tiny_model(folders()), max_model_len=64)


def chunks(events: list[str]) -> list[dict[str, Any]]:
    assert events[-1] == "[DONE]"
    return [json.loads(data) for data in events[:-1]]


def texts(found: list[dict[str, Any]]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for chunk in found:
        for choice in chunk["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            joined[choice["index"]] = joined.get(choice["index"], "") + piece
    return joined


def test_a_completion_has_openais_fields(said: Any) -> None:
    reply = said.post("/v1/completions", **COMPLETION).json()
    assert reply["object"] == "text_completion" and reply["model"] == "tiny"
    [choice] = reply["choices"]
    assert choice["text"].encode() == SCRIPT
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    made = len(SCRIPT) + 1
    assert reply["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": made,
        "total_tokens": 2 + made,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream_says_what_the_whole_answer_says(said: Any, chatty: Any) -> None:
    found = chunks(said.events("/v1/completions", **COMPLETION))
    assert texts(found) == {0: SCRIPT.decode()}
    assert all("usage" not in chunk for chunk in found)
    found = chunks(chatty.events("/v1/chat/completions", temperature=0, **CHAT))
    assert texts(found) == {0: SCRIPT.decode()}
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["id"] for chunk in found} == {found[0]["id"]}
    whole = chatty.post("/v1/chat/completions", temperature=0, **CHAT).json()
    assert whole["choices"][0]["message"]["content"] == SCRIPT.decode()
    assert whole["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_is_a_last_chunk_of_its_own_o04(tiny: Any, path: str) -> None:
    body = {"prompt": "ab"} if path == "/v1/completions" else CHAT
    found = chunks(tiny.events(path, **body, **USAGE, n=2, seed=1, max_tokens=5))
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 10
    assert all(chunk["usage"] is None for chunk in found[:-1])
    ends = [c["finish_reason"] for chunk in found[:-1] for c in chunk["choices"]]
    assert ends.count("length") == 2 and set(ends) == {None, "length"}


def test_continuous_usage_counts_up(tiny: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = chunks(tiny.events("/v1/completions", prompt="ab", stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 16


def test_ids_of_a_chunk_are_those_of_its_text_o03(said: Any) -> None:
    found = chunks(
        said.events(
            "/v1/completions",
            **COMPLETION,
            stop=["@@@@@@"],
            return_token_ids=True,
            logprobs=1,
        )
    )
    assert found[0]["choices"][0]["prompt_token_ids"] == BYTES.ids(b"xy")
    data, text = b"", ""
    for chunk in found:
        [choice] = chunk["choices"]
        ids = [i for i in choice["token_ids"] if i >= 3]
        data += bytes(i - 3 for i in ids)
        text += choice["text"]
        assert data.decode(errors="ignore") == text
        assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])
    assert data == SCRIPT
    assert not any(c["choices"][0]["text"] == "@" for c in found), "the beginning of a stop"


def test_byte_tokens_keep_their_bytes_in_logprobs_o09(chatty: Any, said: Any) -> None:
    reply = chatty.post(
        "/v1/chat/completions", **CHAT, temperature=0, logprobs=True, top_logprobs=3
    ).json()
    content = reply["choices"][0]["logprobs"]["content"]
    joined = b"".join(bytes(entry["bytes"]) for entry in content[:-1])
    assert joined == SCRIPT
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]
        assert all(top["bytes"] for top in entry["top_logprobs"])
    columns = said.post("/v1/completions", **COMPLETION, logprobs=3).json()["choices"][0][
        "logprobs"
    ]
    assert "bytes:\\xf0" in columns["tokens"]
    assert all(len(named) == 3 for named in columns["top_logprobs"])
    assert columns["text_offset"][:2] == [0, 1]
    assert columns["text_offset"][-1] == len(SCRIPT.decode())


def test_echo_without_output_scores_the_prompt_o10(tiny: Any) -> None:
    prompt = "Answer: Yes"
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    reply = tiny.post("/v1/completions", **body).json()
    [choice] = reply["choices"]
    assert choice["text"] == prompt and choice["finish_reason"] == "length"
    scores = choice["logprobs"]
    assert scores["tokens"] == list(prompt)
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert all(value <= 0 for value in scores["token_logprobs"][1:])
    assert scores["text_offset"] == list(range(len(prompt)))
    assert reply["usage"]["completion_tokens"] == 0
    plain = tiny.post("/v1/completions", prompt=prompt, echo=True, max_tokens=0).json()
    assert plain["choices"][0]["text"] == prompt and plain["choices"][0]["logprobs"] is None


def test_echo_goes_before_the_output_and_its_scores(tiny: Any) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 3, "temperature": 0}
    whole = tiny.post("/v1/completions", **body).json()["choices"][0]
    assert whole["text"].startswith("ab")
    scores = whole["logprobs"]
    assert len(scores["tokens"]) == 5 and scores["top_logprobs"][0] is None
    chosen = zip(scores["tokens"], scores["token_logprobs"], strict=True)
    assert scores["top_logprobs"][1:] == [{name: value} for name, value in chosen][1:]
    found = chunks(tiny.events("/v1/completions", **body))
    assert texts(found) == {0: whole["text"]}
    ids = tiny.post("/v1/completions", **{**body, "prompt": BYTES.ids(b"ab")}).json()
    assert ids["choices"][0]["text"] == whole["text"]


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_output_at_all_is_refused_o10(tiny: Any, path: str, limit: int) -> None:
    body = {"prompt": "a"} if path == "/v1/completions" else CHAT
    reply = tiny.post(path, **body, max_tokens=limit)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], None])
def test_an_empty_prompt_is_refused_alone_o11(tiny: Any, prompt: Any) -> None:
    reply = tiny.post("/v1/completions", prompt=prompt)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "prompt"
    assert tiny.engine.num_live_requests == 0
    assert tiny.post("/v1/completions", prompt="a").status_code == 200


def test_a_chat_without_messages_is_refused_and_empty_content_is_not_o11(tiny: Any) -> None:
    reply = tiny.post("/v1/chat/completions", messages=[])
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "messages"
    empty = [{"role": "user", "content": ""}]
    assert tiny.post("/v1/chat/completions", messages=empty).status_code == 200


@pytest.mark.parametrize(("length", "limit"), [(8, 61), (64, 1), (65, None)])
def test_too_long_requests_name_the_limit_o12(tiny: Any, length: int, limit: int | None) -> None:
    reply = tiny.post("/v1/completions", prompt="a" * length, max_tokens=limit)
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert "64" in message and str(length) in message and "-" not in message.split("max_tokens")[-1]


def test_the_last_place_of_the_context_is_used_o12(tiny: Any) -> None:
    reply = tiny.post("/v1/completions", prompt="a" * 63, max_tokens=None, ignore_eos=True).json()
    assert reply["usage"]["completion_tokens"] == 1
    assert reply["choices"][0]["finish_reason"] == "length"


def test_one_id_may_be_used_twice_at_once_o13(tiny: Any) -> None:
    headers = {"X-Request-Id": "mine.0"}
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 20, "seed": 1}
    replies = []
    with tiny.http.stream(
        "POST", "/v1/completions", json={**body, "stream": True}, headers=headers
    ) as first:
        replies = [tiny.http.post("/v1/completions", json=body, headers=headers) for _ in "ab"]
        rest = first.read().decode()
    assert rest.rstrip().endswith("[DONE]") and '"error"' not in rest
    for reply in replies:
        assert reply.status_code == 200
        assert reply.json()["id"] == "cmpl-mine.0"
        assert reply.headers["x-request-id"] == "mine.0"
    assert len(set(tiny.engine.names)) == len(tiny.engine.names)
    assert tiny.post("/v1/completions", prompt="a", request_id="a b").status_code == 400


def test_several_prompts_of_either_kind_are_answered_in_order(tiny: Any) -> None:
    prompts = ["ab", BYTES.ids(b"cd"), "ef"]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 4}
    whole = tiny.post("/v1/completions", **body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    alone = [
        tiny.post("/v1/completions", **{**body, "prompt": p}).json()["choices"][0]["text"]
        for p in prompts
    ]
    assert [choice["text"] for choice in whole["choices"]] == alone
    found = chunks(tiny.events("/v1/completions", **body, **USAGE))
    assert texts(found) == dict(enumerate(alone))
    assert found[-1]["usage"] == whole["usage"] | {
        "prompt_tokens_details": found[-1]["usage"]["prompt_tokens_details"]
    }


def test_stops_are_cut_off_or_kept_and_named(said: Any) -> None:
    cut = said.post("/v1/completions", **COMPLETION, stop="@@").json()["choices"][0]
    assert cut["text"] == "a \U0001f600b" and cut["stop_reason"] == "@@"
    kept = said.post(
        "/v1/completions", **COMPLETION, stop=["@@"], include_stop_str_in_output=True
    ).json()["choices"][0]
    assert kept["text"] == "a \U0001f600b@@" and kept["finish_reason"] == "stop"
    token = BYTES.byte_id(ord("b"))
    ended = said.post("/v1/completions", **COMPLETION, stop_token_ids=[token]).json()["choices"][0]
    assert ended["stop_reason"] == token


HISTORY_ARGUMENTS = [
    ('{"c":"ls"}', 200),
    ({"c": "ls"}, 200),
    ("null", 200),
    ("", 200),
    ("[1]", 400),
    ("{bad", 400),
]


@pytest.mark.parametrize(("arguments", "status"), HISTORY_ARGUMENTS)
def test_tool_calls_of_the_history_are_read_o30(tiny: Any, arguments: Any, status: int) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": parts, "tool_call_id": "1"},
    ]
    template = (
        "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endif %}{{ m.content }}{% endfor %}"
    )
    reply = tiny.post("/tokenize", messages=messages, chat_template=template)
    assert reply.status_code == status, reply.text
    if status == 400:
        assert reply.json()["error"]["param"] == "messages"
        return
    text = bytes(i - 3 for i in reply.json()["tokens"]).decode()
    assert text == ('{"c": "ls"}' if "ls" in str(arguments) else "{}") + "one\ntwo"


@pytest.mark.parametrize("content", ["OK!\n", "OK! ", " OK", ""])
def test_the_last_message_is_continued_o31(tiny: Any, content: str) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": content}]
    template = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    body = {"messages": messages, "continue_final_message": True, "chat_template": template}
    reply = tiny.post("/tokenize", **body)
    assert reply.status_code == 200, reply.text
    text = bytes(i - 3 for i in reply.json()["tokens"]).decode()
    assert text == "[hi][" + content.strip()
    assert tiny.post("/v1/chat/completions", **body, max_tokens=2).status_code == 200
    both = tiny.post("/v1/chat/completions", **body, add_generation_prompt=True)
    assert both.status_code == 400


@pytest.mark.parametrize("text", ["", "a", '"\\\n\x00', "\U0001f600\u2028", "</script>"])
def test_a_frame_is_the_event_that_encoding_would_give(text: str) -> None:
    def make(piece: str) -> dict[str, Any]:
        return {"id": "x", "choices": [{"index": 0, "text": piece, "stop_reason": None}]}

    assert Frame(make).fill(text) == event(make(text))
