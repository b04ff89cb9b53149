"""The loop of reading, answering and showing; an interrupt ends an answer, not the talk."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

import attrs

from pegboard.errors import EngineDeadError, PegboardError
from pegboard_client.conversation import Conversation
from pegboard_client.prompting import FENCE, Reader
from pegboard_client.talkers import Ask, Talker

__all__ = ["Answered", "Repl"]

_HELP = f"""\
/help           this text
/history        what was said so far
/reset          forget what was said; the system message stays
/system [TEXT]  set the system message and begin anew; without a text, take it away
/quit           leave
A line that ends with a backslash goes on in the next; {FENCE} alone on a line begins and ends a
text of several lines. Ctrl-C stops an answer, twice at the prompt leaves."""


@attrs.frozen
class Answered:
    """What came of one question."""

    text: str
    stopped: bool = False
    """By the user: `text` is what had come."""
    error: str = ""


@attrs.define
class Repl:
    """Talks until the reader has no more. `conversation` None completes texts, each for itself."""

    talker: Talker
    loop: asyncio.AbstractEventLoop
    """Runs only while an answer is awaited."""
    conversation: Conversation | None
    reader: Reader
    failed: int = 0
    """Questions that got no answer."""

    def run(self) -> None:
        """Returns when the user leaves, or the input ends."""
        if self.reader.interactive:
            print(f"{self.talker.name}: /help shows what can be typed beside questions.")
        while (text := self.reader.read()) is not None:
            if self.conversation is not None and text.startswith("/"):
                if not self._obey(text, self.conversation):
                    return
            elif self.conversation is None and text.strip() == "/quit":
                return
            else:
                self.ask(text)

    def ask(self, text: str) -> Answered:
        """Show the answer to one text. Raises `EngineDeadError`: then there will be no other."""
        talk = self.conversation
        answer = self._stream(text if talk is None else talk.ask(text))
        if answer.error:
            self.failed += 1
            print(f"pegboard: error: {answer.error}", file=sys.stderr, flush=True)
        elif talk is not None:
            talk.remember(text, answer.text)
        return answer

    def _obey(self, line: str, talk: Conversation) -> bool:
        """Do what the line says; False if that is to leave."""
        word, _, rest = line.partition(" ")
        commands: dict[str, Callable[[Conversation, str], None]] = {
            "/help": lambda talk, rest: print(_HELP),
            "/history": lambda talk, rest: _show(talk),
            "/reset": lambda talk, rest: talk.reset(),
            "/system": _set_system,
        }
        if word in ("/quit", "/exit"):
            return False
        if word in commands:
            commands[word](talk, rest.strip())
        else:
            known = ", ".join([*commands, "/quit"])
            print(f"there is no {word}; there are {known}", file=sys.stderr, flush=True)
        return True

    def _stream(self, ask: Ask) -> Answered:
        pieces: list[str] = []
        task = self.loop.create_task(self._show(ask, pieces))
        with _interrupts_to(self.loop, task):
            try:
                self.loop.run_until_complete(task)
            except asyncio.CancelledError:
                print("\n(stopped)", file=sys.stderr, flush=True)
                return Answered("".join(pieces), stopped=True)
            except EngineDeadError:
                raise
            except PegboardError as error:
                if pieces:
                    print(flush=True)
                return Answered("".join(pieces), error=str(error))
        print(flush=True)
        return Answered("".join(pieces))

    async def _show(self, ask: Ask, pieces: list[str]) -> None:
        async with aclosing(self.talker.answer(ask)) as answer:
            async for piece in answer:
                pieces.append(piece.text)
                sys.stdout.write(piece.text)
                sys.stdout.flush()


def _show(talk: Conversation) -> None:
    for message in talk.messages():
        print(f"{message['role']}: {message['content']}")


def _set_system(talk: Conversation, text: str) -> None:
    talk.system = text or None
    talk.reset()


@contextmanager
def _interrupts_to(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> Iterator[None]:
    """An interrupt cancels the task, where the loop can wait for signals; elsewhere it ends the
    program."""
    try:
        loop.add_signal_handler(signal.SIGINT, task.cancel)
    except (NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
