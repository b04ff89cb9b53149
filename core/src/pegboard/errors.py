"""Every error that Pegboard raises on purpose.

All derive from `PegboardError`; the message is one or two sentences for the person who can mend
the cause. Errors that blame a value derive from `ValueError` too, so that callers may catch either.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DuplicateError",
    "EngineDeadError",
    "MissingPluginError",
    "PegboardError",
    "PluginError",
    "RequestError",
    "ResourceError",
    "SelectionError",
    "UnsupportedError",
]


class PegboardError(Exception):
    """Base class of all deliberate errors."""


class ConfigError(PegboardError, ValueError):
    """A setting (argument, flag, file key) has a value that is not allowed.

    The message names the field, the bad value and the allowed ones.
    """


class RequestError(PegboardError, ValueError):
    """One request is invalid; others are untouched.

    `field` is the public name of the offending parameter, for example ``"max_tokens"``.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class CheckpointError(PegboardError, ValueError):
    """A checkpoint file is missing, malformed, incomplete or holds something unexpected.

    The message names the file and, where there is one, the tensor or key.
    """


class UnsupportedError(PegboardError, ValueError):
    """The input is well formed but asks for a feature that this installation does not have."""


class ResourceError(PegboardError, RuntimeError):
    """The model, a request or a setting does not fit; the message says what would."""


class PluginError(PegboardError, RuntimeError):
    """A plugin broke the rules of the framework: failed import, bad hook, wrong type, wrong
    level."""


class DuplicateError(PluginError):
    """Two plugins claim the same name; the message names both distributions."""


class MissingPluginError(PluginError):
    """No loaded plugin provides what was asked for; the message says what would and why it is
    absent."""


class SelectionError(PluginError):
    """No candidate fits; the message lists every candidate with its reasons."""


class EngineDeadError(PegboardError, RuntimeError):
    """The engine stopped after an internal fault; every waiting request receives this."""
