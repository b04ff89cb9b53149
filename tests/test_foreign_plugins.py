"""Plugins of somebody else, one for each kind: begun with `pegboard plugins new`, built as wheels
outside the tree, and installed where the first-party plugin that does the same is not.

Each passes its own tests there, serves the command line, and is gone when it is uninstalled.
"""

from __future__ import annotations

import ast
import json
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import pytest

from pegboard.testing.checkpoints import ByteVocabulary, write_model_files

pytestmark = pytest.mark.accept

OURS = (
    *("pegboard-core", "pegboard-testkit", "pegboard-model-llama", "pegboard-quant-gguf"),
    *("pegboard-platform-cpu", "pegboard-attention-torch", "pegboard-connector-filesystem"),
)
"""What is installed beside them."""
DOORS = ("pegboard.api", "pegboard.errors", "pegboard.nn", "pegboard.testing")
LIBRARIES = {"attrs", "msgspec", "numpy", "torch"}
SMALLEST_COPY = 30
"""Nodes of a function's syntax tree, above which two equal ones are no accident."""
PROMPT = "Write two sentences on why leaves are green."
GREEDY = ("--temperature", "0", "--max-tokens", "24", "--dtype", "float32", "--quiet")
CACHED_TOKENS = """
import json, sys
from pegboard import LLM, SamplingParams
model, transfer, text = sys.argv[1:]
with LLM(model, dtype="float32", kv_transfer_config=json.loads(transfer)) as llm:
    messages = [{"role": "user", "content": text}]
    (output,) = llm.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    print(output.num_cached_tokens)
"""


@attrs.frozen
class Foreign:
    """One plugin of another author."""

    surface: str
    name: str
    counterpart: str = ""
    """The first-party distribution that does the same, which is away."""
    flags: tuple[str, ...] = ()
    """What asks for it, where its being there does not."""
    missing: str = ""
    """What the error names when neither is there; by default the counterpart."""

    @property
    def distribution(self) -> str:
        return f"pegboard-{self.surface}-{self.name}"

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")


MODEL = Foreign("model", "maple", "pegboard-model-llama")
QUANT = Foreign("quant", "quince", "pegboard-quant-gguf", missing="quince")
ATTENTION = Foreign("attention", "aspen", "pegboard-attention-torch")
PLATFORM = Foreign(
    "platform",
    "poplar",
    "pegboard-platform-cpu",
    flags=("--no-plugins-except", "llama,gguf,poplar"),  # or the testkit's would be the last resort
)
CONNECTOR = Foreign("connector", "cedar", "pegboard-connector-filesystem", missing="cedar")
LOGITS = Foreign(
    "logits",
    "larch",
    flags=("--extra-args", '{"larch": 40}'),
    missing="no logits processor has this argument",
)
SCHEDULER = Foreign(
    "scheduler",
    "sorrel",
    flags=("-o", "scheduler_cls=sorrel", "-o", "scheduling_policy=priority"),
    missing="sorrel",
)
COMMAND = Foreign("command", "clover", missing="clover")
ALL = (MODEL, QUANT, ATTENTION, PLATFORM, CONNECTOR, LOGITS, SCHEDULER, COMMAND)


@attrs.frozen
class Shop:
    """The environment, what can be installed in it, and what it answers without strangers."""

    fresh: Any
    sources: dict[str, Path]
    """Folder of each foreign plugin, by distribution."""
    wheels: dict[str, Path]
    model: Path
    answer: str

    @contextmanager
    def instead(self, foreign: Foreign) -> Iterator[None]:
        """The foreign plugin is installed and its counterpart is not; afterwards all is as it was,
        whatever happened."""
        self.fresh.install(self.wheels[foreign.distribution])
        if foreign.counterpart:
            self.fresh.uninstall(foreign.counterpart)
        try:
            yield
        finally:
            self.fresh.uninstall(foreign.distribution)  # if the test has not come to that
            if foreign.counterpart:
                self.fresh.install(self.wheels[foreign.counterpart])

    def listed(self) -> dict[str, Any]:
        """`pegboard plugins list`, by id."""
        return {row["id"]: row for row in listing(self.fresh)["plugins"]}

    def run(self, *words: str) -> Any:
        return self.fresh.pegboard("run", str(self.model), PROMPT, *GREEDY, *words)


def listing(fresh: Any) -> Any:
    outcome = fresh.pegboard("plugins", "list", "--json")
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.fixture(scope="module")
def shop(
    repo_root: Path,
    workspace: ModuleType,
    make_fresh: Any,
    make_wheels: Any,
    smollm2_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    members = {m.distribution: repo_root / m.folder for m in workspace.members(repo_root)}
    ours = make_wheels(folder / "ours", {name: members[name] for name in OURS})
    fresh = make_fresh(folder / "env")
    fresh.install(*ours.values())
    sources = {foreign.distribution: folder / foreign.distribution for foreign in ALL}
    for foreign in ALL:
        into = ("--into", str(sources[foreign.distribution]))
        outcome = fresh.pegboard("plugins", "new", foreign.surface, foreign.name, *into)
        assert outcome.returncode == 0, outcome.stderr
    finish_model(sources[MODEL.distribution], repo_root / "tests/foreign/model")
    shorten_connector_tests(sources[CONNECTOR.distribution] / "tests/test_cedar_kit.py")
    theirs = make_wheels(folder / "theirs", sources)
    plain = fresh.pegboard("run", str(smollm2_path), PROMPT, *GREEDY)
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.split()) > 8, plain.stdout
    return Shop(fresh, sources, {**ours, **theirs}, smollm2_path, plain.stdout)


def finish_model(folder: Path, ours: Path) -> None:
    """Make the family that the scaffold begins one that serves real files."""
    package = folder / "src" / MODEL.module
    for path in (package / "config.py", package / "model.py"):
        shutil.copy(ours / path.name, path)
    shutil.copy(ours / "reference_of_maple.py", folder / "tests")
    hooks = (package / "__init__.py").read_text()
    old, new = '{"hf": ("MapleForCausalLM",)}', '{"hf": ("MapleForCausalLM",), "gguf": ("llama",)}'
    assert old in hooks
    (package / "__init__.py").write_text(hooks.replace(old, new))


def shorten_connector_tests(path: Path) -> None:
    """As an author may: fewer random operations, and not every kind of model."""
    text, line = path.read_text(), '    connector = "cedar"\n'
    assert line in text
    kinds = '("full", "sliding and full", "all that have hits")'
    path.write_text(text.replace(line, f"{line}    operations = 100\n    kinds = {kinds}\n"))


def kit_passes(shop: Shop, foreign: Foreign) -> None:
    tests = shop.sources[foreign.distribution] / "tests"
    outcome = shop.fresh.python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert " passed" in outcome.stdout, outcome.stdout


def gone(shop: Shop, foreign: Foreign, outcome: Any) -> None:
    """`outcome`, of a run after the plugin was uninstalled, says what is missing."""
    assert outcome.returncode not in (0, None), outcome.stdout
    assert (foreign.missing or foreign.counterpart) in outcome.stderr, outcome.stderr
    assert "Traceback" not in outcome.stderr, outcome.stderr


@pytest.mark.parametrize("foreign", [MODEL, ATTENTION, PLATFORM, SCHEDULER], ids=lambda f: f.name)
def test_it_stands_in_for_ours_and_the_answer_is_the_same(shop: Shop, foreign: Foreign) -> None:
    with shop.instead(foreign):
        listed = shop.listed()
        assert listed[foreign.name]["state"] == "ready", listed[foreign.name]
        assert foreign.counterpart not in {row["distribution"] for row in listed.values()}
        kit_passes(shop, foreign)
        served = shop.run(*foreign.flags)
        assert served.returncode == 0, served.stderr
        assert served.stdout == shop.answer
        shop.fresh.uninstall(foreign.distribution)
        assert foreign.name not in shop.listed()
        gone(shop, foreign, shop.run(*foreign.flags))


def test_a_connector_saves_what_the_next_process_loads(shop: Shop, tmp_path: Path) -> None:
    transfer = json.dumps(
        {
            "kv_connector": CONNECTOR.name,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"path": str(tmp_path)},
        }
    )
    flags = ("--kv-transfer-config", transfer)
    with shop.instead(CONNECTOR):
        kit_passes(shop, CONNECTOR)
        count = ("-c", CACHED_TOKENS, str(shop.model), transfer, PROMPT)
        for _ in range(2):  # saved, then loaded
            served = shop.run(*flags)
            assert served.returncode == 0, served.stderr
            assert served.stdout == shop.answer
        assert list(tmp_path.rglob("*.pt"))
        loaded = shop.fresh.python(*count)
        assert loaded.returncode == 0, loaded.stderr
        assert int(loaded.stdout) >= 16, loaded.stdout
        shop.fresh.uninstall(CONNECTOR.distribution)
        assert CONNECTOR.name not in shop.listed()
        gone(shop, CONNECTOR, shop.run(*flags))


def test_a_logits_processor_changes_the_answers_that_ask_for_it(shop: Shop) -> None:
    with shop.instead(LOGITS):
        kit_passes(shop, LOGITS)
        plain, asked = shop.run(), shop.run(*LOGITS.flags)
        assert plain.returncode == asked.returncode == 0, plain.stderr + asked.stderr
        assert plain.stdout == shop.answer
        assert asked.stdout.strip() and asked.stdout != shop.answer
        shop.fresh.uninstall(LOGITS.distribution)
        assert LOGITS.name not in shop.listed()
        gone(shop, LOGITS, shop.run(*LOGITS.flags))


def test_a_command_is_there_as_long_as_its_wheel(shop: Shop) -> None:
    with shop.instead(COMMAND):
        kit_passes(shop, COMMAND)
        assert shop.fresh.pegboard("clover", "three short words").stdout == "3\n"
        shop.fresh.uninstall(COMMAND.distribution)
        assert COMMAND.name not in shop.listed()
        assert "clover" not in shop.fresh.pegboard("--help").stdout
        gone(shop, COMMAND, shop.fresh.pegboard("clover", "three short words"))


def test_a_number_format_reads_its_own_files(shop: Shop, tmp_path: Path) -> None:
    stored, plain = (write_small_llama(tmp_path / str(q), quantised=q) for q in (True, False))
    ask = ("a text", "--raw", "--max-model-len", "64", *GREEDY)
    expected = shop.fresh.pegboard("run", str(plain), *ask)
    assert expected.returncode == 0, expected.stderr
    with shop.instead(QUANT):
        kit_passes(shop, QUANT)
        served = shop.fresh.pegboard("run", str(stored), *ask)
        assert served.returncode == 0, served.stderr
        assert served.stdout.strip() and served.stdout == expected.stdout
        shop.fresh.uninstall(QUANT.distribution)
        assert QUANT.name not in shop.listed()
        gone(shop, QUANT, shop.fresh.pegboard("run", str(stored), *ask))


def write_small_llama(folder: Path, *, quantised: bool) -> Path:
    """A checkpoint in bytes with a scale per row, or the numbers that these stand for."""
    vocabulary, draws = ByteVocabulary(), np.random.default_rng(5)
    wide, inner = 32, 48
    shapes = {"model.embed_tokens": (vocabulary.size, wide), "lm_head": (vocabulary.size, wide)}
    for layer in ("model.layers.0", "model.layers.1"):
        shapes |= {f"{layer}.self_attn.{name}_proj": (wide, wide) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj": (inner, wide) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (wide, inner)}
    tensors: dict[str, Any] = {}
    for name, shape in shapes.items():
        codes = draws.integers(-127, 128, shape).astype(np.int8)
        scale = draws.uniform(0.001, 0.008, (shape[0], 1)).astype(np.float32)
        if quantised:
            tensors |= {f"{name}.weight": codes, f"{name}.weight_scale": scale}
        else:
            tensors[f"{name}.weight"] = codes * scale
    norms = ["input_layernorm", "post_attention_layernorm"]
    names = [f"model.layers.{i}.{norm}" for i in range(2) for norm in norms]
    tensors |= {f"{name}.weight": np.ones(wide, np.float32) for name in (*names, "model.norm")}
    method = {"quant_method": QUANT.name} if quantised else None
    config = SmallLlama(vocab_size=vocabulary.size, quantization_config=method)
    return write_model_files(folder, "LlamaForCausalLM", config, tensors, vocabulary)


@attrs.frozen(kw_only=True)
class SmallLlama:
    """The keys of its ``config.json``."""

    vocab_size: int
    quantization_config: dict[str, str] | None
    hidden_size: int = 32
    intermediate_size: int = 48
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    max_position_embeddings: int = 128
    eos_token_id: int = 1


def test_none_imports_more_than_a_plugin_may(shop: Shop) -> None:
    for foreign in ALL:
        seen = 0
        for path in shop.sources[foreign.distribution].rglob("*.py"):
            own = {path.stem for path in path.parent.glob("*.py")} | {foreign.module}
            testing = {"pytest", "pegboard_testkit"} if path.parent.name == "tests" else set()
            for module in imported(ast.parse(path.read_text())):
                root = module.partition(".")[0]
                seen += 1
                known = root in own | testing | LIBRARIES | sys.stdlib_module_names
                assert known or module == "pegboard" or module.startswith(DOORS), (path, module)
        assert seen


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_none_is_a_copy_of_ours(shop: Shop, repo_root: Path, workspace: ModuleType) -> None:
    ours = dict[str, str]()
    for member in workspace.members(repo_root):
        if member.distribution not in ("pegboard-core", "pegboard-testkit"):
            ours |= functions(member.package)
    assert len(ours) > 100
    for foreign in ALL:
        made = functions(shop.sources[foreign.distribution] / "src")
        copies = {made[body]: ours[body] for body in made.keys() & ours.keys()}
        assert not copies, copies


def test_a_copy_is_known_under_another_name(tmp_path: Path) -> None:
    body = """
    total = sum(item * item for item in values)
    return total / max(len(values), 1)
"""
    for name, head in (("first", "def mean(values):\n    'Mine.'"), ("second", "def m(values):")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(head + body)
    assert functions(tmp_path / "first").keys() == functions(tmp_path / "second").keys()
    assert functions(tmp_path / "first")


def functions(folder: Path) -> dict[str, str]:
    """Bodies of functions, docstrings left out, with where they stand."""
    found = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                rest = node.body[ast.get_docstring(node) is not None :]
                if sum(1 for part in rest for _ in ast.walk(part)) >= SMALLEST_COPY:
                    body = "\n".join(ast.dump(part) for part in rest)
                    found[body] = f"{path.name}:{node.name}"
    return found


def test_the_order_of_installing_does_not_matter(
    shop: Shop, make_fresh: Any, tmp_path: Path
) -> None:
    """Not even between two that want the same: here both model families claim one architecture."""
    names, seen = [*OURS, *(foreign.distribution for foreign in ALL)], []
    for seed in (1, 2):
        random.Random(seed).shuffle(names)
        fresh = make_fresh(tmp_path / str(seed))
        for begin in range(0, len(names), 3):  # pip takes a second for each call
            fresh.install(*(shop.wheels[name] for name in names[begin : begin + 3]))
        seen.append(untimed(listing(fresh)))
    assert seen[0] == seen[1]
    assert {foreign.name for foreign in ALL} <= {row["id"] for row in seen[0]["plugins"]}
    states = {row["id"]: row["state"] for row in seen[0]["plugins"]}
    assert {states.pop("llama"), states.pop("maple")} == {"ready", "failed"}
    assert set(states.values()) == {"ready"}, states


def untimed(found: Any) -> Any:
    for row in found["plugins"]:
        assert row.pop("import_time_ms") >= 0
    return found
