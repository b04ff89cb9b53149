"""What is said to a package that needs more of vLLM than there is."""

from __future__ import annotations

from pegboard.errors import PluginError

__all__ = ["REMEDY", "RefusedAttributeError", "RefusedError", "RefusedImportError"]

REMEDY = (
    "run it with vLLM itself, leave it out with VLLM_PLUGINS, or port it: 'pegboard plugins new' "
    "writes a plugin to begin with"
)


class RefusedError(PluginError):
    """A package needs what has no stand-in here; the message names package, thing and remedy."""

    def __init__(self, package: str, does: str) -> None:
        super().__init__(f"{package} {does}; {REMEDY}")


class RefusedImportError(RefusedError, ImportError):
    """Of a module or of a name in one."""


class RefusedAttributeError(RefusedError, AttributeError):
    """Of a value that is handed to a package."""
