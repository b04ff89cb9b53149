"""``pegboard chat`` and ``pegboard complete``, driven on a terminal and through pipes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from pegboard.errors import RequestError
from pegboard_client.talkers import LocalTalker, Piece

CODE = "import sys; from pegboard.cli import main; sys.exit(main())"


def piped(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-Ic", CODE, *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def last_question(body: dict[str, Any]) -> list[str]:
    return [f"<{body['messages'][-1]['content']}>"]


def test_a_talk_on_a_terminal(fake: Any, terminal: Callable[..., Any]) -> None:
    fake.say = last_question
    talk = terminal("chat", "--url", fake.url + "/v1/", "--system", "be kind")
    talk.until("fake: /help")
    talk.until("> ")
    talk.type("first\n")
    talk.until("<first>")
    talk.until("> ")
    talk.type("second \\\n")
    talk.until(". ")
    talk.type("line\n")
    talk.until("<second \r\nline>")
    talk.type("/reset\n")
    talk.type('"""\na\n\nb\n"""\n')
    talk.until("<a\r\n\r\nb>")
    talk.type("/system\n/nonsense\n")
    talk.until("there is no /nonsense; there are /help")
    talk.type("last\n")
    talk.until("<last>")
    talk.until("> ")
    talk.type("/quit\n")
    assert talk.ended() == 0
    asked = [[message["content"] for message in body["messages"]] for body in fake.bodies]
    assert asked == [
        ["be kind", "first"],
        ["be kind", "first", "<first>", "second \nline"],
        ["be kind", "a\n\nb"],
        ["last"],
    ]


def at_the_prompt(talk: Any) -> None:
    """The prompt is shown, and the line editor waits for keys: an interrupt that comes between the
    two is looked at with the next key only."""
    talk.until("> ")
    time.sleep(0.3)


def test_an_interrupt_stops_the_answer_and_two_at_the_prompt_leave(
    fake: Any, terminal: Callable[..., Any]
) -> None:
    fake.say = lambda body: [f"word{number} " for number in range(1000)]
    fake.gap_seconds = 0.02
    talk = terminal("chat", "--url", fake.url)
    talk.until("> ")
    talk.type("go\n")
    talk.until("word3 ")
    talk.type("\x03")
    shown = talk.until("(stopped)")
    assert "word900" not in shown
    talk.until("> ")
    fake.say, fake.gap_seconds = last_question, 0.0
    talk.type("again\n")
    talk.until("<again>")
    assert fake.bodies[1]["messages"][1]["content"].startswith("word0 word1 word2 word3")
    at_the_prompt(talk)
    talk.type("\x03")
    talk.until("leaves)")
    talk.until("> ")
    talk.type("more\n")
    talk.until("<more>")
    at_the_prompt(talk)
    talk.type("\x03")
    talk.until("leaves)")
    at_the_prompt(talk)
    talk.type("\x03")
    assert talk.ended() == 0
    assert fake.left == 1


class Model:
    """Stands in for an `AsyncLLM`: its states grow by a letter."""

    def __init__(self, text: str, error: str | None = None) -> None:
        self.text, self.error = text, error
        self.asked: list[Any] = []
        self.closed = 0

    async def apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        return "/".join(message["content"] for message in messages)

    async def generate(self, prompt: Any, params: Any) -> AsyncGenerator[Any, None]:
        self.asked.append((prompt, params))
        try:
            for end in range(1, len(self.text) + 1):
                reason = "stop" if end == len(self.text) else None
                item = SimpleNamespace(
                    text=self.text[:end], finish_reason=reason, error=reason and self.error
                )
                yield SimpleNamespace(outputs=[item])
        finally:
            self.closed += 1


async def pieces(talker: LocalTalker, ask: Any, count: int = 99) -> list[Piece]:
    found: list[Piece] = []
    async with aclosing(talker.answer(ask)) as answer:
        async for piece in answer:
            found.append(piece)
            if len(found) == count:
                break
    return found


def test_a_local_model_is_asked_with_its_template_and_streams_what_its_states_add() -> None:
    model = Model("abc")
    talker = LocalTalker(model, "name", "params")
    question = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    found = asyncio.run(pieces(talker, question))
    assert found == [Piece("a"), Piece("b"), Piece("c", "stop")]
    asyncio.run(pieces(talker, "plain"))
    assert model.asked == [("s/q", "params"), ("plain", "params")]


def test_a_reader_that_goes_away_ends_the_request_of_a_local_model() -> None:
    model = Model("abc")
    asyncio.run(pieces(LocalTalker(model, "name", None), "plain", count=1))
    assert model.closed == 1


def test_a_local_answer_that_fails_is_an_error() -> None:
    with pytest.raises(RequestError, match="it broke"):
        asyncio.run(pieces(LocalTalker(Model("abc", "it broke"), "name", None), "plain"))


def test_a_real_pipe_gets_the_answers_alone(fake: Any) -> None:
    fake.say = last_question
    done = piped("one\n\ntwo\n", "chat", "--url", fake.url)
    assert (done.stdout, done.stderr, done.returncode) == ("<one>\n<two>\n", "", 0)
    assert len(fake.bodies[1]["messages"]) == 3


def test_complete_sends_texts_as_they_are(
    fake: Any, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.say = lambda body: [body["prompt"].upper(), "!"]
    words = ("complete", "fake", "--url", fake.url, "--max-tokens", "5")
    assert run(*words, stdin="one\n/reset\n") == 0
    assert capsys.readouterr().out == "ONE!\n/RESET!\n"
    assert fake.bodies[0]["prompt"] == "one" and fake.bodies[0]["max_tokens"] == 5


def test_one_question_can_be_asked_at_once(
    fake: Any, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--stop", "a", "--stop", "b", "--seed", "3", "--top-k", "4", "--temperature", "0.5"]
    assert run("chat", "--url", fake.url, "-q", "hi", *options) == 0
    assert capsys.readouterr().out == "one two three\n"
    body = fake.bodies[0]
    given = {name: body[name] for name in ("stop", "seed", "top_k", "temperature")}
    assert given == {"stop": ["a", "b"], "seed": 3, "top_k": 4, "temperature": 0.5}
    assert "top_p" not in body


def test_a_question_that_fails_is_told_and_not_remembered(
    fake: Any, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.statuses = [400]
    fake.say = last_question
    assert run("chat", "--url", fake.url, stdin="bad\ngood\n") == 1
    shown = capsys.readouterr()
    assert shown.out == "<good>\n" and "answered 400: told to answer 400" in shown.err
    assert [m["content"] for m in fake.bodies[1]["messages"]] == ["good"]


def test_an_answer_that_breaks_off_is_an_error(
    fake: Any, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.break_after = 2
    assert run("chat", "--url", fake.url, "-q", "hi") == 1
    shown = capsys.readouterr()
    assert shown.out == "one two \n" and "the connection to" in shown.err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--url", "ftp://x"], 2, "--url 'ftp://x' is not allowed: an address such as"),
        (["--url", "http://127.0.0.1:99999"], 2, "--url 'http://127.0.0.1:99999' is not allowed"),
        (["--url", "http://127.0.0.1:1"], 1, "is the server running?"),
        (["--url", "FAKE", "other"], 2, "has no model 'other'; it serves fake"),
        (["--url", "FAKE", "-o", "dtype=float32"], 2, "not allowed together with --url"),
        (["--url", "FAKE", "--max-tokns", "3"], 2, "--max-tokens"),
        (["model", "-o", "dtype"], 2, "-o dtype is not allowed: name=value"),
        (["model", "--temperature", "-1"], 2, "temperature=-1.0 is not allowed"),
        (["no/such/model"], 2, "no/such/model"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_asked(
    words: list[str],
    code: int,
    told: str,
    fake: Any,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [fake.url if word == "FAKE" else word for word in words]
    assert run("chat", *words, "-q", "hi") == code
    assert told in capsys.readouterr().err
    assert fake.bodies == []


def test_a_key_is_asked_for_and_taken_from_flag_or_environment(
    fake: Any,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.key = "secret"
    asking = ["chat", "--url", fake.url, "-q", "hi"]
    assert run(*asking) == 1
    error = capsys.readouterr().err
    assert "answered 401: an API key is needed (give a key with --api-key or in PEG" in error
    assert run(*asking, "--api-key", "secret") == 0
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert run(*asking) == 0
    monkeypatch.setenv("PEGBOARD_API_KEY", "wrong")
    assert run(*asking) == 1
