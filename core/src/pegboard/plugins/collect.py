"""Importing one plugin and asking its hooks for descriptors.

Nothing is registered here: the caller receives everything that the plugin offers, checked, or an
error. So a plugin that fails half way leaves nothing on the board, and its half-imported modules
are forgotten too; also where what it offers is refused.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import attrs
import pluggy

from pegboard.api.context import PluginContext
from pegboard.api.descriptor import Descriptor, LazyRef
from pegboard.api.foreign import ADOPT_HOOK, ForeignPlugin
from pegboard.api.hooks import HOOK_SURFACES, SETTINGS_HOOK, Hooks
from pegboard.errors import PluginError
from pegboard.plugins.conduct import Observed
from pegboard.plugins.nearest import nearest
from pegboard.plugins.settings import build_settings

__all__ = ["DESCRIPTOR_TYPES", "Offer", "ToImport", "Visit", "collect", "collect_adopted"]

PROJECT = "pegboard"
HOOKS = (*HOOK_SURFACES, SETTINGS_HOOK, ADOPT_HOOK)

DESCRIPTOR_TYPES = MappingProxyType(
    {
        "alias": "pegboard.api.alias:ModelAlias",
        "attention": "pegboard.api.attention:AttentionBackend",
        "checkpoint": "pegboard.api.checkpoint:CheckpointSource",
        "command": "pegboard.api.command:Command",
        "connector": "pegboard.api.connector:KVConnector",
        "endpoint": "pegboard.api.endpoint:Endpoint",
        "events": "pegboard.api.events:EventPublisher",
        "executor": "pegboard.api.executor_class:ExecutorClass",
        "logits": "pegboard.api.logits:LogitsProcessor",
        "model": "pegboard.api.model:ModelFamily",
        "ops": "pegboard.api.ops:OpVersion",
        "platform": "pegboard.api.platform:Platform",
        "quant": "pegboard.api.quant:QuantFormat",
        "scheduler": "pegboard.api.scheduler_class:SchedulerClass",
        "stat_logger": "pegboard.api.stat_logger:StatLogger",
        "tokenizer": "pegboard.api.tokenizer:TokenizerClass",
        "tracer": "pegboard.api.tracer:Tracer",
    }
)
"""What the hook of each surface must return, imported only when a hook returned something."""


T = TypeVar("T")


@attrs.frozen(eq=False)
class Visit(Generic[T]):
    """What every plugin is asked with."""

    declared: Mapping[str, int]
    """Surface → API level."""
    ctx: PluginContext
    given: Mapping[str, Any] | None
    """What its settings are made from."""
    watching: AbstractContextManager[Observed]
    accept: Callable[[list[tuple[str, Descriptor]]], T]
    """Looks at what it offers, and may refuse it."""


@attrs.frozen(eq=False)
class Offer(Generic[T]):
    """What a plugin has to offer."""

    accepted: T
    """What the caller made of its (surface, descriptor) pairs."""
    settings: Any
    """An instance of its settings class; None without one."""
    seen: Observed


class ToImport(NamedTuple):
    """A module that is not imported yet, or may be."""

    name: str
    spec: ModuleSpec | None
    """Where it was found a moment ago; None: look for it as usual."""

    def load(self) -> ModuleType:
        """The module; raises what importing it does."""
        if self.spec is None or self.spec.loader is None:
            return importlib.import_module(self.name)
        module = sys.modules[self.name] = module_from_spec(self.spec)
        try:
            self.spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(self.name, None)
            raise
        return sys.modules[self.name]


def collect(to_import: ToImport, visit: Visit[T]) -> Offer[T]:
    """Import the module, check its hooks and call them.

    Raises `PluginError` for a broken rule, `SettingsError` for settings that are not allowed and
    whatever `Visit.accept` and the plugin itself raise, `SystemExit` included.
    """
    module_name, ctx = to_import.name, visit.ctx
    with _imports_undone_on_error(module_name), visit.watching as seen:
        module = to_import.load()
        callers = _hook_callers(module, module_name)
        _check_declared(callers, visit.declared)
        settings = build_settings(_settings_class(callers, ctx), ctx.plugin_id, visit.given)
        if settings is not None:
            ctx = attrs.evolve(ctx, settings=settings)
        asked = (caller for caller in callers if caller.name in HOOK_SURFACES)
        accepted = visit.accept([pair for caller in asked for pair in _call(caller, ctx)])
    return Offer(accepted, settings, seen)


def collect_adopted(adopter: str, group: str, value: str, visit: Visit[T]) -> Offer[T]:
    """As `collect`, for a plugin that was made for another program: the module `adopter`, which is
    loaded, is asked for what stands for it. `group` and `value` are those of its entry point; it
    has no settings.

    Raises also `NotAdoptedError`.
    """
    ctx = visit.ctx
    with _imports_undone_on_error(value.partition(":")[0]), visit.watching as seen:
        callers = _hook_callers(importlib.import_module(adopter), adopter)
        build_settings(None, ctx.plugin_id, visit.given)
        asked = next((c for c in callers if c.name == ADOPT_HOOK), None)
        if asked is None:
            raise PluginError(f"module {adopter!r}, which is to run it, has no hook {ADOPT_HOOK!r}")
        plugin = ForeignPlugin(ctx.plugin_id, group, value, ctx.distribution, ctx.version)
        pairs = [
            (_surface_of(item, visit.declared), item)
            for answer in asked(ctx=ctx, plugin=plugin)
            for item in answer
        ]
        accepted = visit.accept(pairs)
    return Offer(accepted, None, seen)


def _surface_of(item: Any, declared: Mapping[str, int]) -> str:
    """The surface of a descriptor, one of those that the adopter declares."""
    for surface in declared:
        if isinstance(item, LazyRef(DESCRIPTOR_TYPES[surface]).load()):
            _checked(item, surface, ADOPT_HOOK)
            return surface
    raise PluginError(
        f"hook {ADOPT_HOOK!r} must return descriptors of the surfaces that PEGBOARD_API declares "
        f"({', '.join(declared)}), one was {_kind(item)}"
    )


def _settings_class(callers: Iterable[pluggy.HookCaller], ctx: PluginContext) -> Any:
    for caller in callers:
        if caller.name == SETTINGS_HOOK:
            return caller(ctx=ctx)
    return None


@contextmanager
def _imports_undone_on_error(module_name: str) -> Iterator[None]:
    """On error, forget the modules of the plugin's own package that were imported meanwhile."""
    root = module_name.partition(".")[0]
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            if name == root or name.startswith(f"{root}."):
                del sys.modules[name]
        raise


def _hook_callers(module: ModuleType, module_name: str) -> list[pluggy.HookCaller]:
    """Register with a manager of its own, so that every finding belongs to this plugin."""
    marked = _marked(module)
    manager = _Manager(PROJECT)
    manager.add_hookspecs(_specifications(marked))
    _check_unmarked(module, module_name)
    _check_arguments(marked, module_name)
    try:
        manager.register(marked, module_name)
    except pluggy.PluginValidationError as error:
        raise PluginError(_one_line(str(error))) from error
    callers = manager.get_hookcallers(marked) or []
    for caller in callers:
        _check_known(caller)
    if not callers:
        raise PluginError(
            f"module {module_name!r} has no hooks; mark a function named as in pegboard.api.hooks "
            "with @hookimpl"
        )
    return sorted((c for c in callers if c.has_spec()), key=lambda caller: caller.name)


class _Manager(pluggy.PluginManager):
    """Looks at what stands in plain namespaces, which takes a fraction of the time."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        return getattr(vars(plugin).get(name), f"{PROJECT}_impl", None)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        return getattr(vars(module_or_class).get(name), f"{PROJECT}_spec", None)


def _marked(module: ModuleType) -> ModuleType:
    """What of the module is marked as a hook, which is all that pluggy has to look at."""
    found = ModuleType(module.__name__)
    vars(found).update(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, (FunctionType, MethodType))
        and isinstance(getattr(value, f"{PROJECT}_impl", None), dict)
    )
    return found


def _hook_of(name: str, function: Any) -> str:
    """Which hook a marked function implements."""
    return str(getattr(function, f"{PROJECT}_impl").get("specname") or name)


def _hooks(marked: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(marked).items():
        if hasattr(value, f"{PROJECT}_impl"):
            yield _hook_of(name, value), value


def _specifications(marked: ModuleType) -> ModuleType:
    """Those of the hooks that the module has, and one more, for none would be an error of pluggy:
    it takes a while to read them all."""
    named = {hook for hook, _ in _hooks(marked)}
    found = ModuleType("specifications")
    vars(found).update(
        (name, getattr(Hooks, name)) for name in {*named & set(HOOKS), SETTINGS_HOOK}
    )
    return found


def _check_unmarked(module: ModuleType, module_name: str) -> None:
    for name in HOOKS:
        function = getattr(module, name, None)
        if callable(function) and not hasattr(function, f"{PROJECT}_impl"):
            raise PluginError(
                f"function {name!r} of module {module_name!r} is not marked with @hookimpl"
            )


def _check_arguments(marked: ModuleType, module_name: str) -> None:
    """A hook takes some of the arguments that its specification has; others must have defaults."""
    for hook, value in _hooks(marked):
        if hook not in HOOKS or not isinstance(value, FunctionType):
            continue
        given = _needed(getattr(Hooks, hook))[1:]
        unknown = [argument for argument in _needed(value) if argument not in given]
        if unknown:
            words = "the argument" if len(unknown) == 1 else "the arguments"
            raise PluginError(
                f"hook {hook!r} of module {module_name!r} wants {words} "
                f"{', '.join(map(repr, unknown))}, which it is not given; it may take "
                f"{', '.join(map(repr, given))}, or none"
            )


def _needed(function: FunctionType) -> list[str]:
    """Names of the arguments that it cannot be called without."""
    code, defaults = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount - len(defaults)]
    by_keyword = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return [*positional, *(n for n in by_keyword if n not in (function.__kwdefaults__ or {}))]


def _check_known(caller: pluggy.HookCaller) -> None:
    """A hook that no specification names is a spelling mistake, unless marked ``optionalhook``."""
    if caller.has_spec() or all(impl.optionalhook for impl in caller.get_hookimpls()):
        return
    near = nearest(caller.name, HOOKS, cutoff=0.4)
    hint = f"; the nearest hook is {near!r}" if near else f"; hooks are {', '.join(HOOKS)}"
    raise PluginError(f"there is no hook {caller.name!r}{hint}")


def _check_declared(callers: Iterable[pluggy.HookCaller], declared: Mapping[str, int]) -> None:
    for caller in callers:
        surface = HOOK_SURFACES.get(caller.name)
        if surface is not None and surface not in declared:
            raise PluginError(
                f"hook {caller.name!r} registers into the surface {surface!r}, which PEGBOARD_API "
                "does not declare "
                f"(declared: {', '.join(declared)})"
            )


def _call(caller: pluggy.HookCaller, ctx: PluginContext) -> Iterator[tuple[str, Descriptor]]:
    surface = HOOK_SURFACES[caller.name]
    answers = caller(ctx=ctx)
    if len(answers) < sum(
        not (impl.wrapper or impl.hookwrapper) for impl in caller.get_hookimpls()
    ):
        answers = [None]  # pluggy drops the answer None; here it is a forgotten return
    for answer in reversed(answers):
        if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
            raise PluginError(
                f"hook {caller.name!r} must return a list of descriptors, it returned "
                f"{_kind(answer)}"
            )
        for item in answer:
            checked = _checked(item, surface, caller.name)
            if surface == "ops" and not checked.name.startswith(f"{ctx.plugin_id}."):
                raise PluginError(
                    f"op versions of this plugin are called {ctx.plugin_id!r}, a dot and a name; "
                    f"hook {caller.name!r} returned {checked.name!r}"
                )
            yield surface, checked


def _checked(item: Any, surface: str, hook: str) -> Descriptor:
    expected = LazyRef(DESCRIPTOR_TYPES[surface]).load()
    if not isinstance(item, expected):
        raise PluginError(
            f"hook {hook!r} must return {expected.__name__} descriptors, one was {_kind(item)}"
        )
    keys = (item.name, *item.claims())
    bad = [key for key in keys if not isinstance(key, str) or not key]
    if bad:
        raise PluginError(
            f"names and claims must be non-empty strings, hook {hook!r} returned {bad[0]!r}"
        )
    return item  # type: ignore[no-any-return]


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
