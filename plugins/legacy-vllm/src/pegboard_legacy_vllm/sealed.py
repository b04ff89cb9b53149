"""Stand-ins that nobody can change: modules, classes and values."""

from __future__ import annotations

import re
from abc import ABCMeta
from collections.abc import Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from pegboard_legacy_vllm.refusal import RefusedAttributeError, RefusedError, RefusedImportError

__all__ = ["PACKAGE", "Sealed", "SealedModule", "SealedValue", "sealed"]

PACKAGE: ContextVar[str] = ContextVar("PACKAGE", default="a package that was made for vLLM")
"""Whose code runs, for messages."""

_KEPT_BY_PYTHON = ("_abc_impl", "__abstractmethods__")
_MARK = "_pegboard_sealed"
_DUNDER = re.compile(r"__\w+__")


def _refuse_change(what: str) -> NoReturn:
    raise RefusedError(PACKAGE.get(), f"assigns {what}, and there is no vLLM here to change")


def _refuse_reading(what: str) -> NoReturn:
    raise RefusedAttributeError(PACKAGE.get(), f"reads {what}, which is not known here")


class Sealed(ABCMeta):
    """Metaclass of stand-in classes. Subclasses of them are their authors' own."""

    def __setattr__(cls, name: str, value: object) -> None:
        if _MARK in vars(cls) and name not in _KEPT_BY_PYTHON:
            _refuse_change(f"{cls.__name__}.{name}")
        super().__setattr__(name, value)

    def __getattr__(cls, name: str) -> Any:
        if _MARK in vars(cls) and not name.startswith("__"):
            _refuse_reading(f"{cls.__name__}.{name}")
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")

    def __delattr__(cls, name: str) -> None:
        if _MARK in vars(cls):
            _refuse_change(f"{cls.__name__}.{name}")
        super().__delattr__(name)


T = TypeVar("T", bound=type)


def sealed(cls: T) -> T:
    """The finished class, which does not change any more (a decorator)."""
    setattr(cls, _MARK, True)
    return cls


class SealedModule(ModuleType):
    """A stand-in for one of vLLM's modules."""

    def __init__(self, name: str, content: Mapping[str, Any], children: frozenset[str]) -> None:
        super().__init__(name, "A stand-in: there is no vLLM here.")
        vars(self).update(content)
        vars(self)[_MARK] = children

    def __getattr__(self, name: str) -> Any:
        if name in vars(self)[_MARK] or _DUNDER.fullmatch(name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise RefusedImportError(
            PACKAGE.get(), f"needs {self.__name__}.{name}, for which there is no stand-in"
        )

    def __setattr__(self, name: str, value: object) -> None:
        place = f"{self.__name__}.{name}"
        by_import = isinstance(value, SealedModule) and value.__name__ == place
        if not (by_import or _DUNDER.fullmatch(name)):
            _refuse_change(place)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _refuse_change(f"{self.__name__}.{name}")


@sealed
class SealedValue(metaclass=Sealed):
    """Base of values that have some of the attributes of vLLM's; others are refused by name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse_reading(f"{vars(self).get('called', type(self).__name__)}.{name}")
