"""Plugins that break the rules as they are loaded: each ends as it should, and harms nobody else.

The saboteur is ``odd``, between two sound plugins; what it may not touch is `Rest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from pegboard.errors import PluginError
from pegboard.plugins import LoadPolicy

HOOK = "@hookimpl\ndef pegboard_platforms():\n    "
SOUND = HOOK + "return [platform()]\n"


class Case(NamedTuple):
    """One kind of sabotage."""

    name: str
    body: str
    """Follows the beginning that all saboteurs have."""
    told: Sequence[str]
    """What the reason says."""


AT_IMPORT = [
    Case("import error", "import no_such_module", ["No module named 'no_such_module'", ":"]),
    Case("error", "raise RuntimeError('boom\\nand more')", ["RuntimeError: boom and more"]),
    Case(
        "mute error",
        "class Mute(Exception):\n    def __str__(self): raise OSError\nraise Mute",
        ["Mute (", "odd_module.py:"],
    ),
    Case(
        "native library",
        "import ctypes; ctypes.CDLL('libodd-is-missing.so.7')",
        ["OSError: libodd-is-missing.so.7"],
    ),
    Case("exit", "sys.exit(0)", ["SystemExit: 0"]),
    Case("own kind", "class Abrupt(BaseException): pass\nraise Abrupt('x')", ["Abrupt: x"]),
    Case("generator exit", "raise GeneratorExit", ["GeneratorExit"]),
    Case("stop iteration", "raise StopIteration(3)", ["StopIteration: 3"]),
    Case(
        "cancelled", "import asyncio; raise asyncio.CancelledError('now')", ["CancelledError: now"]
    ),
    Case("memory", "raise MemoryError", ["MemoryError"]),
    Case("recursion", "def f(): return f()\nf()", ["RecursionError: maximum recursion depth"]),
    Case(
        "deprecation", "warnings.simplefilter('error'); warnings.warn('old')", ["UserWarning: old"]
    ),
    Case("attributes", "def __getattr__(name): raise RuntimeError(name)", ["RuntimeError: "]),
    Case("no hooks", "x = 1", ["has no hooks; mark a function"]),
]

IN_HOOKS = [
    Case("error in a hook", HOOK + "raise KeyError('odd key')", ["KeyError: 'odd key'"]),
    Case("exit in a hook", HOOK + "sys.exit('enough')", ["SystemExit: enough"]),
    Case(
        "half done",
        "@hookimpl\ndef pegboard_commands(ctx):\n"
        "    ctx.metrics.gauge('early', 'Early')\n"
        "    return [Command('early', 'x', 'a:b')]\n" + HOOK + "1 / 0",
        ["ZeroDivisionError"],
    ),
    Case(
        "generator that fails half way",
        HOOK + "yield platform()\n    yield platform('second')\n    raise OSError('third')",
        ["OSError: third"],
    ),
    Case(
        "misspelt hook",
        SOUND.replace("pegboard_platforms", "pegboard_platfroms"),
        ["no hook 'pegboard_platfroms'; the nearest hook is 'pegboard_platforms'"],
    ),
    Case("unmarked hook", SOUND.replace("@hookimpl\n", ""), ["not marked with @hookimpl"]),
    Case(
        "extra argument",
        SOUND.replace("()", "(ctx, engine)"),
        [
            "hook 'pegboard_platforms' of module 'odd_module' wants the argument 'engine', which",
            "it may take 'ctx', or none",
        ],
    ),
    Case(
        "extra arguments, by keyword and under another name",
        "@hookimpl(specname='pegboard_platforms')\n"
        "def mine(engine, *, ctx, board, depth=1): return [platform()]",
        ["hook 'pegboard_platforms'", "wants the arguments 'engine', 'board', which"],
    ),
    Case(
        "extra argument of the settings",
        "@hookimpl\ndef pegboard_settings(config): return None\n" + SOUND,
        ["hook 'pegboard_settings'", "wants the argument 'config'", "it may take 'ctx'"],
    ),
    Case("a number", HOOK + "return 1", ["list of descriptors", "a value of type int"]),
    Case("a mapping", HOOK + "return {'odd': platform()}", ["list of descriptors", "dict"]),
    Case("a coroutine's hook", HOOK.replace("def", "async def") + "return []", ["coroutine"]),
    Case("another kind", HOOK + "return [Command('odd', 'x', 'a:b')]", ["Platform descriptors"]),
    Case("the class", HOOK + "return [Platform]", ["Platform descriptors", "type type"]),
    Case("no name", HOOK + "return [platform('')]", ["non-empty strings", "''"]),
    Case(
        "claims that fail later",
        "class Later(Platform):\n    asked = 0\n    def claims(self):\n"
        "        Later.asked += 1\n        if Later.asked > 1: raise OSError('asked again')\n"
        "        return ()\n"
        + HOOK
        + "return [platform(), Later(name='later', probe='a:b', runtime='a:b')]",
        ["OSError: asked again"],
    ),
    Case(
        "undeclared surface",
        "@hookimpl\ndef pegboard_schedulers():\n    return []",
        ["surface 'scheduler', which PEGBOARD_API does not declare"],
    ),
    Case("malformed reference", HOOK + "return [Platform('odd', 'x', 'a:b')]", ["'x' is not of"]),
]

TAKEN = [
    Case(
        "command of the core",
        "@hookimpl\ndef pegboard_commands(): return [Command('run', 'Mine', 'odd:run')]",
        ["command 'run' is registered by both pegboard-core", "odd 1.0"],
    ),
    Case(
        "command, after a change of the environment",
        "os.environ['ODD'] = '1'\n"
        "@hookimpl\ndef pegboard_commands(): return [Command('bench', 'Mine', 'odd:run')]",
        ["command 'bench' is registered by both pegboard-core"],
    ),
    Case("itself", HOOK + "return [platform(), platform()]", ["twice by odd 1.0"]),
    Case(
        "op in another namespace",
        "@hookimpl\ndef pegboard_ops(): return [OpVersion('alpha.rope', 'rope', 'a:b')]",
        ["'odd', a dot and a name", "'alpha.rope'"],
    ),
    Case(
        "op",
        "@hookimpl\ndef pegboard_ops(): return [OpVersion('odd.rope', 'rope', 'a:b')] * 2",
        ["ops 'odd.rope' is registered twice"],
    ),
    Case(
        "metric",
        "@hookimpl\ndef pegboard_platforms(ctx):\n"
        "    ctx.metrics.counter('n', 'Things')\n"
        "    ctx.metrics.gauge('n', 'Things')\n    return []",
        ["metric pegboard_plugin_odd_n", "taken by a counter"],
    ),
    Case(
        "override of a command of the core",
        "PEGBOARD_OVERRIDE = {'command': ['plugins']}\n" + SOUND,
        ["PEGBOARD_OVERRIDE names the command 'plugins'", "cannot be overridden"],
    ),
]

OF_THE_PROCESS = [
    Case(
        "class of the core",
        "from pegboard.api.context import PluginContext\nPluginContext.logger = None\n" + SOUND,
        ["changes pegboard.api.context.PluginContext.logger", "pegboard.api"],
    ),
    Case(
        "function of the core, then an error",
        "import pegboard.plugins.nearest as core\ncore.nearest = print\n" + HOOK + "raise OSError",
        ["OSError"],
    ),
    Case(
        "class of the core, in a hook",
        HOOK + "Platform.more = lambda self: 1\n    return [platform()]",
        ["changes pegboard.api.platform.Platform.more"],
    ),
    Case(
        "reload of the core",
        "import importlib\nimport pegboard.errors as core\nimportlib.reload(core)\n" + SOUND,
        ["pegboard.errors.PluginError", "which is undone"],
    ),
    Case(
        "second import of the core",
        "del sys.modules['pegboard.errors']\nimport pegboard.errors\n" + SOUND,
        ["module pegboard.errors in sys.modules"],
    ),
    Case(
        "module of the core",
        "sys.modules['pegboard.plugins'] = types.ModuleType('pegboard.plugins')\n" + SOUND,
        ["module pegboard.plugins in sys.modules"],
    ),
    Case(
        "module of Python",
        "import json\nsys.modules['json'] = types.ModuleType('json')\n" + SOUND,
        ["module json in sys.modules"],
    ),
    Case(
        "module of another plugin",
        "sys.modules['alpha_module'] = sys\n" + SOUND,
        ["module alpha_module in sys.modules"],
    ),
    Case(
        "module taken away", "del sys.modules['alpha_module']\n" + SOUND, ["module alpha_module in"]
    ),
    Case(
        "default dtype",
        "import torch\ntorch.set_default_dtype(torch.bfloat16)\n" + SOUND,
        ["torch's default dtype (now torch.bfloat16)"],
    ),
    Case(
        "signal handler",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n" + SOUND,
        ["the handler of SIGINT, the handler of SIGTERM"],
    ),
    Case(
        "signal handler, then an error",
        "signal.signal(signal.SIGUSR1, print)\nraise OSError('late')",
        ["OSError: late"],
    ),
    Case(
        "built-in function",
        "import builtins\nbuiltins.bin = builtins.ascii = None\n" + SOUND,
        ["changes builtins.ascii, builtins.bin, which is undone"],
    ),
    Case(
        "built-in function taken away, then an error",
        "import builtins\ndel builtins.bin\nbin(1)",
        ["NameError: name 'bin' is not defined"],
    ),
    Case("search path", "sys.path.clear()\n" + SOUND, ["changes what stood in sys.path"]),
    Case("another search path", "sys.path = ['/']\n" + SOUND, ["changes what stood in sys.path"]),
    Case(
        "order of the search path",
        "sys.path.reverse()\n" + SOUND,
        ["changes what stood in sys.path"],
    ),
    Case("working folder", "os.chdir('/')\n" + SOUND, ["changes the working folder (now /)"]),
    Case("working folder, then an error", "os.chdir('/')\nraise OSError", ["OSError"]),
    Case("warnings as errors", "warnings.simplefilter('error')\n" + SOUND, ["filters of warnings"]),
    Case(
        "environment, then an error",
        "os.environ['ODD'] = '1'\nos.environ['PATH'] = ''\ndel os.environ['HOME']\nraise OSError",
        ["OSError"],
    ),
]

FAILING = [*AT_IMPORT, *IN_HOOKS, *TAKEN, *OF_THE_PROCESS]


@pytest.mark.parametrize("case", FAILING, ids=lambda case: case.name.replace(" ", "-"))
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_it_is_quarantined_and_the_rest_is_unharmed(site: Any, rest: Any, case: Case) -> None:
    site.add_saboteur(case.body)
    board = site.load()
    (record,) = (r for r in board.plugins if r.id == "odd")
    assert (record.state, record.registered) == ("failed", ())
    for text in case.told:
        assert text in record.reason
    assert "\n" not in record.reason
    (notice,) = board.notices
    assert notice.startswith("plugin plugins:odd of odd 1.0 is failed: " + record.reason)
    assert "leave it out with VLLM_PLUGINS=alpha,zulu" in notice
    rest.check(board)


@pytest.mark.parametrize("case", [AT_IMPORT[0], IN_HOOKS[2], TAKEN[0], OF_THE_PROCESS[0]])
def test_in_strict_mode_it_is_one_error_that_says_what_to_do(
    site: Any, rest: Any, case: Case
) -> None:
    site.add_saboteur(case.body)
    start = r"^strict mode refuses to start: plugins:odd of odd 1\.0 is failed: "
    end = "VLLM_PLUGINS=alpha,zulu$"
    with pytest.raises(PluginError, match=f"{start}.*{end}") as caught:
        site.load(policy=LoadPolicy(strict=True))
    assert case.told[0] in str(caught.value)
    rest.forget()
    rest.check_process()
