"""Calls of a connector inside ``multi``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import attrs

from pegboard.errors import PluginError

__all__ = ["Guard"]

T = TypeVar("T")


@attrs.frozen
class Guard:
    """Keeps the faults of one connector from the others."""

    place: int
    """Of the connector in the list."""
    name: str
    isolate: bool

    def call(self, method: str, call: Callable[[], T], otherwise: T) -> T:
        """The answer, or `otherwise` if the connector breaks down and is to be isolated.

        `PluginError`, a breach of the contract, is never held back.
        """
        try:
            return call()
        except PluginError:
            raise
        except Exception as error:
            if not self.isolate:
                raise
            logging.getLogger("pegboard.connector.multi").warning(
                "connector %d (%s) failed in %s, the others go on: %s: %s",
                self.place,
                self.name,
                method,
                type(error).__name__,
                error,
            )
            return otherwise

    def breach(self, method: str, answer: object, allowed: str) -> PluginError:
        """The error for an answer that the contract does not allow."""
        return PluginError(
            f"KV connector {self.name!r} (number {self.place} of 'multi') broke its contract: "
            f"{method} returned {answer!r}, allowed is {allowed}"
        )
