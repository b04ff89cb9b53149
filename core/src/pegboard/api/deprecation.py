"""Names that will go: whoever still uses one is told, with the day until which it stays.

Called by: the core, inside whatever is deprecated: an old function, the module's ``__getattr__``
for an old name, ``__attrs_post_init__`` of a descriptor whose field is old.
"""

from __future__ import annotations

import sys
from types import FrameType

__all__ = ["DeprecatedWarning", "deprecated"]

_OWN = __name__.partition(".")[0]
_BETWEEN = ("", "attr", "attrs", "importlib", "msgspec", "pluggy")
"""Top modules that pass a call on; generated functions have no module."""
_TOLD = "__pegboard_deprecations__"


class DeprecatedWarning(FutureWarning):
    """A plugin uses something that will go. Shown to operators, too, unlike Python's own."""


def deprecated(name: str, *, until: str, instead: str) -> None:
    """Warn that the plugin whose code is running uses `name`.

    It is told once per process, plugin and name. `until` is the day, as ``YYYY-MM-DD``, before
    which `name` does not go; `instead` says what to write. The warning has the category
    `DeprecatedWarning` and the place in the plugin's code, so that filters act on it as on any.

    Raises `ValueError` if `until` is no day.
    """
    import warnings  # the rest of the contracts has no use for these two
    from datetime import date

    try:
        day = date.fromisoformat(until)
    except ValueError:
        raise ValueError(f"until={until!r} is no day of the form YYYY-MM-DD") from None
    frame = _user()
    module = str(frame.f_globals.get("__name__", ""))
    plugin = module.partition(".")[0]
    told = _told(plugin, frame)
    if name in told:
        return
    warnings.warn_explicit(
        f"{plugin} uses {name}, which may go after {day}: use {instead}",
        DeprecatedWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module,
    )
    told.add(name)


def _user() -> FrameType:
    """The nearest frame that is not the core's; the core's own if there is no other."""
    own = frame = sys._getframe(2)
    while _top(frame) == _OWN or _top(frame) in _BETWEEN:
        if frame.f_back is None:
            return own
        frame = frame.f_back
    return frame


def _top(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _told(plugin: str, frame: FrameType) -> set[str]:
    """What a plugin was told of. Kept in its top module, as Python keeps what it warned of."""
    top = sys.modules.get(plugin)
    names = frame.f_globals if top is None else vars(top)
    told: set[str] = names.setdefault(_TOLD, set())
    return told
