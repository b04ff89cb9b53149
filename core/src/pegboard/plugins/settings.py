"""A plugin's own settings: from ``plugin_config`` to an instance of the class that it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from pegboard.api.settings import check_keys, refused
from pegboard.errors import ConfigError, PegboardError, PluginError

__all__ = ["SettingsError", "build_settings", "check_plugin_ids"]

_PLAIN = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
_LISTS = (list, tuple, set, frozenset)


class SettingsError(ConfigError):
    """A value that the operator gave to a plugin is not allowed."""


def check_plugin_ids(given: Mapping[str, Any], installed: Iterable[str]) -> None:
    """Raise `ConfigError` for settings of a plugin that is not installed."""
    if given:
        check_keys("plugin_config", given, sorted(set(installed)))


def build_settings(cls: Any, plugin_id: str, given: Mapping[str, Any] | None) -> Any:
    """An instance of `cls`, the attrs class that the plugin declares, from what was given to it.

    None without a class. Types are strict: text is no number, a number no truth value. Raises
    `SettingsError` naming the key, the value and what is allowed, `PluginError` where the class
    is at fault.
    """
    where = f"plugin_config.{plugin_id}"
    given = given or {}
    if cls is None:
        if given:
            raise SettingsError(f"{where}: the plugin has no settings, so it takes no {min(given)}")
        return None
    if not (isinstance(cls, type) and attrs.has(cls)):
        raise PluginError(f"hook 'pegboard_settings' must return an attrs class, not {cls!r}")
    fields = {field.alias: field for field in attrs.fields(cls) if field.init}
    required = [name for name, field in fields.items() if field.default is attrs.NOTHING]
    try:
        check_keys(where, given, list(fields), required)
        return cls(**_structured(cls, where, given, fields))
    except PluginError:
        raise
    except PegboardError as error:
        text = str(error)
        raise SettingsError(text if text.startswith(where) else f"{where}: {text}") from error
    except (TypeError, ValueError) as error:  # of the class's own validators
        raise SettingsError(f"{where}: {error.args[0] if error.args else error}") from error


def _structured(
    cls: type, where: str, given: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Every given value in the type of its field."""
    if not given:
        return {}
    from cattrs.errors import StructureHandlerNotFoundError

    try:
        attrs.resolve_types(cls)
    except NameError as error:
        raise PluginError(f"types of the settings {cls.__name__} are not known: {error}") from error
    converter = _converter()
    values = {}
    for name, value in given.items():
        wanted = fields[name].type
        try:
            values[name] = value if wanted is None else converter.structure(value, wanted)
        except StructureHandlerNotFoundError as error:
            raise PluginError(
                f"setting {name!r} of {cls.__name__} has the type {_words(wanted)}, which plain "
                "values cannot become"
            ) from error
        except Exception as error:  # cattrs raises whatever the conversion does
            raise refused(where, name, value, _words(wanted)) from error
    return values


def _converter() -> Any:
    """Strict where cattrs converts by default."""
    import cattrs
    from cattrs.strategies import configure_union_passthrough

    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
    for kind in _PLAIN:
        converter.register_structure_hook(kind, _exactly)
    configure_union_passthrough(Union[int, float, str, bool, None], converter)  # noqa: UP007
    converter.register_structure_hook_func(_is_list, _list_hook(converter))
    return converter


def _exactly(value: Any, kind: type) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {_PLAIN[kind]}")
    return value


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (*_LISTS, Sequence) or kind in _LISTS


def _list_hook(converter: Any) -> Callable[[Any, Any], Any]:
    """By default text would become a list of its characters."""

    def structure(value: Any, kind: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{value!r} is no list")
        origin, parts = get_origin(kind) or kind, get_args(kind)
        make = list if origin is Sequence else origin
        if origin is tuple and parts and parts[-1] is not Ellipsis:
            pairs = zip(value, parts, strict=True)
            return tuple(converter.structure(item, part) for item, part in pairs)
        return make(converter.structure(item, parts[0]) if parts else item for item in value)

    return structure


def _words(kind: Any) -> str:
    """What values of a type are called in messages."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in (None, NoneType):
        return "null"
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, parts))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_words, parts))
    if _is_list(kind):
        inner = ", ".join(_words(part) for part in parts if part is not Ellipsis)
        return f"a list ({inner})" if inner else "a list"
    if isinstance(kind, type) and attrs.has(kind):
        names = ", ".join(field.alias or field.name for field in attrs.fields(kind))
        return f"an object with the keys {names}"
    return kind.__name__ if isinstance(kind, type) and not parts else str(kind)
