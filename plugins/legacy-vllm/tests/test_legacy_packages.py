"""What packages that were made for vLLM register, and what they are refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pegboard import LLM, SamplingParams
from pegboard.testing.boards import board_of
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_legacy_vllm.base import UNUSED
from pegboard_legacy_vllm.configs import complete
from pegboard_legacy_vllm.stand_ins import CONTENT

MODEL = "vllm.model_executor.models.llama"
OWN = f"from {MODEL} import LlamaForCausalLM\n\n\nclass HouseModel(LlamaForCausalLM):\n"
BY_PATH = """
def register():
    from vllm.model_executor.models import ModelRegistry
    ModelRegistry.register_model("HouseForCausalLM", "house_model:HouseModel")
"""
BY_CLASS = """
from vllm.model_executor.models.registry import ModelRegistry
from house_model import HouseModel

def register():
    ModelRegistry.register_model("HouseForCausalLM", HouseModel)
"""


def alias_of(board: Any) -> Any:
    return board.registry("alias").get("hf:HouseForCausalLM")


def test_an_architecture_of_vllm_becomes_an_alias_of_the_packages_distribution(
    packages: Any,
) -> None:
    packages.add_house()
    board = packages.board()
    assert alias_of(board).of == "LlamaForCausalLM" and alias_of(board).config is None
    record = board.provenance("alias", "hf:HouseForCausalLM")
    assert (record.distribution, record.version) == ("acme-house", "1.2")
    assert (record.state, record.qualified) == ("ready", "general_plugins:house_plugin")
    assert "vllm" not in sys.modules and "torch" not in vars(sys.modules["house_plugin"])


@pytest.mark.parametrize("source", [BY_PATH, BY_CLASS])
@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("    pass\n", True),
        ('    """As it is."""\n', True),
        ("    scale = 2\n", False),
        ("    def forward(self, x):\n        return x\n", False),
    ],
)
def test_a_class_that_adds_nothing_is_an_alias_and_one_with_code_is_refused(
    packages: Any, source: str, body: str, known: bool
) -> None:
    packages.add_house(source, house_model=OWN + body)
    board = packages.board()
    if known:
        assert alias_of(board).of == "LlamaForCausalLM"
        return
    (record,) = [r for r in board.plugins if r.id == "house_plugin"]
    assert record.state == "failed" and alias_of(board) is None
    assert "acme-house 1.2 registers its own model class house_model:HouseModel" in record.reason


def test_a_checkpoint_of_the_new_name_runs_and_says_whose_it_is(
    packages: Any, tmp_path: Path
) -> None:
    packages.add_house(
        "from vllm import ModelRegistry\n"
        "def register():\n"
        f"    ModelRegistry.register_model('HouseForCausalLM', '{MODEL}:PegboardTiny')\n"
    )
    model = write_tiny_model(tmp_path / "tiny", seed=3)
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)

    def answer() -> Any:
        with LLM(str(model), dtype="float32", num_gpu_blocks_override=16, max_model_len=64) as llm:
            (output,) = llm.generate([[1, 2, 3]], greedy, use_tqdm=False)
            (row,) = [row for row in llm.plugins() if row["id"] == "house_plugin"]
        return list(output.outputs[0].token_ids), row["used"]

    expected = answer()[0]
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({**config, "architectures": ["HouseForCausalLM"]})
    )
    assert answer() == (expected, ["alias:HouseForCausalLM"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import vllm.v1.core.sched.scheduler", "imports vllm.v1.core.sched.scheduler"),
        ("from vllm.v1.core.sched.scheduler import S", "imports vllm.v1.core.sched.scheduler"),
        ("from vllm import LLM", "needs vllm.LLM"),
        ("import vllm; vllm.envs.X", "needs vllm.envs"),
        ("import vllm.v1.request as r; r.Request = int", "assigns vllm.v1.request.Request"),
        ("import vllm; vllm.v1 = 1", "assigns vllm.v1"),
        ("import vllm.logger as l; del l.init_logger", "assigns vllm.logger.init_logger"),
        ("import vllm.v1.request as r; r.Request.x = 1", "assigns Request.x"),
        ("from vllm import ModelRegistry as m; m.register_model = 1", "ModelRegistry.register_mod"),
        ("from vllm import ModelRegistry as m; m.models['x'] = 1", "writes 'x' into a registry"),
        ("from vllm.model_executor.models.llama import LlamaMLP", "models.llama.LlamaMLP"),
        ("from vllm import ModelRegistry as m; m.inspect", "reads ModelRegistry.inspect"),
        ("pass", "registers no model and no KV connector"),
        ("try:\n        import vllm.envs\n    except ImportError: pass", "imports vllm.envs"),
    ],
)
def test_what_needs_more_of_vllm_is_refused_by_name(packages: Any, body: str, said: str) -> None:
    packages.add_house(f"def register():\n    {body}\n")
    record = packages.record()
    assert record.state == "failed"
    assert record.reason.startswith("acme-house 1.2 ") and said in record.reason
    assert "run it with vLLM itself" in record.reason
    assert "vllm" not in sys.modules


def test_one_that_goes_on_without_what_is_refused_is_no_failure(packages: Any) -> None:
    packages.add_house(
        "from vllm import ModelRegistry\n"
        "try:\n    from vllm import envs\nexcept ImportError:\n    envs = None\n"
        f"def register():\n    ModelRegistry.register_model('HouseForCausalLM', '{MODEL}:Llama4')\n"
    )
    assert packages.record().state == "ready"


def test_a_second_board_of_the_process_is_like_the_first(packages: Any) -> None:
    packages.add_shelf()
    packages.add_house()
    first, second = packages.board(), packages.board()
    assert first.plugins == second.plugins or [(r.id, r.registered) for r in first.plugins] == [
        (r.id, r.registered) for r in second.plugins
    ]
    assert second.registry("connector").get("shelf") is not None


def test_where_vllm_is_installed_its_packages_are_left_to_it(packages: Any) -> None:
    packages.add_house(vllm="")
    packages.add_shelf()
    board = packages.board()
    found = {r.id: r.state for r in board.plugins if r.group == "vllm.general_plugins"}
    assert found == {"house_plugin": "unused", "shelf_kv": "unused"}
    (notice,) = [n for n in board.notices if "vLLM" in n]
    assert "vLLM is installed here" in notice and "house_plugin" not in sys.modules


def test_the_allowlist_wants_the_package_and_the_plugin_that_runs_it(packages: Any) -> None:
    packages.add_house()
    for state, *names in (("ready", "legacy-vllm", "acme-house"), ("blocked", "acme-house")):
        (record,) = [r for r in board_of(*names).plugins if r.id == "house_plugin"]
        assert record.state == state, record.reason


class Config:
    """What transformers' classes have in common."""

    attribute_map: ClassVar[dict[str, str]] = {}

    def __init__(self, **values: Any) -> None:
        self.returned = 1
        vars(self).update(values)

    @classmethod
    def from_dict(cls, values: Any) -> Any:
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class HouseConfig(Config):
    model_type = "house"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "width"}

    def __init__(self, width: int = 64, depth: int = 3, **values: Any) -> None:
        self.width, self.depth = width, depth
        super().__init__(**values)


def test_a_configuration_class_fills_in_what_the_checkpoint_leaves_out() -> None:
    raw = {"model_type": "house", "depth": 5}
    assert complete(raw, [HouseConfig]) == {"hidden_size": 64, "depth": 5, "model_type": "house"}
    assert complete({**raw, "width": 8}, [HouseConfig])["hidden_size"] == 8
    assert complete({"model_type": "x"}, [HouseConfig]) == {"model_type": "x"}


CONFIG = """
class Registry:
    @staticmethod
    def register(model_type, config, exist_ok=False):
        raise AssertionError("it is registered with transformers")

AutoConfig = Registry
"""


def test_a_registered_configuration_class_belongs_to_the_packages_aliases(
    packages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the package is the first to import transformers."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    folder = "transformers/models/auto"
    source = (
        "from transformers.models.auto.configuration_auto import AutoConfig\n"
        "from vllm import ModelRegistry\n"
        "class HouseConfig:\n    model_type = 'house'\n"
        "def register():\n    AutoConfig.register('house', HouseConfig)\n"
    )
    alias = f"    ModelRegistry.register_model('HouseForCausalLM', '{MODEL}:LlamaForCausalLM')\n"
    packages.add_house(source + alias)
    for path in ("transformers", "transformers/models", folder):
        (packages.folder / path).mkdir()
        (packages.folder / path / "__init__.py").write_text("")
    (packages.folder / folder / "configuration_auto.py").write_text(CONFIG)
    for _ in range(2):  # then it is loaded already
        reference = alias_of(packages.board()).config
        assert reference.target == "pegboard_legacy_vllm.configs:read.house_plugin.HouseConfig"
        auto: ModuleType = sys.modules["transformers.models.auto.configuration_auto"]
        with pytest.raises(AssertionError, match="with transformers"):
            auto.AutoConfig.register("x", int)
    assert reference.load()({"model_type": "other"}) == {"model_type": "other"}
    (packages.folder / "house_plugin.py").write_text(source)
    del sys.modules["house_plugin"]
    assert "registers configuration classes (house) and no" in packages.record().reason


def test_the_page_lists_what_can_be_imported_and_what_is_refused() -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `vllm")]
    listed = {
        (module, name)
        for modules, names in (row.strip("| ").split(" | ") for row in rows)
        for module in re.findall(r"`([\w.]+)`", modules)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert listed == {(module, name) for module, names in CONTENT.items() for name in names}
    assert all(f"`{method}`" in page for method in UNUSED)


@pytest.mark.accept
def test_with_transformers_itself(packages: Any) -> None:
    packages.add_house(
        "from transformers import AutoConfig, PretrainedConfig\n"
        "from vllm import ModelRegistry\n"
        "class HouseConfig(PretrainedConfig):\n"
        "    model_type = 'house'\n"
        "    attribute_map = {'hidden_size': 'width'}\n"
        "    def __init__(self, width=64, depth=3, **more):\n"
        "        self.width, self.depth = width, depth\n"
        "        super().__init__(**more)\n"
        "def register():\n"
        "    AutoConfig.register('house', HouseConfig)\n"
        f"    ModelRegistry.register_model('HouseForCausalLM', '{MODEL}:LlamaForCausalLM')\n"
    )
    rewrite = alias_of(packages.board()).config.load()
    found = rewrite({"model_type": "house", "depth": 5, "architectures": ["HouseForCausalLM"]})
    assert found == {
        "model_type": "house",
        "depth": 5,
        "hidden_size": 64,
        "architectures": ["HouseForCausalLM"],
    }
