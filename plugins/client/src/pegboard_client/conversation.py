"""What was said so far."""

from __future__ import annotations

import attrs

__all__ = ["Conversation"]


@attrs.define
class Conversation:
    """Messages in OpenAI's form, a system message first if there is one."""

    system: str | None = None
    _turns: list[dict[str, str]] = attrs.field(factory=list)

    def ask(self, text: str) -> list[dict[str, str]]:
        """All that a model is sent for the next question; nothing is remembered yet."""
        return [*self.messages(), {"role": "user", "content": text}]

    def remember(self, question: str, answer: str) -> None:
        """Keep a question with its answer, which may have been stopped early."""
        self._turns += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]

    def reset(self) -> None:
        """Forget what was said; the system message stays."""
        self._turns.clear()

    def messages(self) -> list[dict[str, str]]:
        """All of them."""
        first = [] if not self.system else [{"role": "system", "content": self.system}]
        return [*first, *self._turns]
