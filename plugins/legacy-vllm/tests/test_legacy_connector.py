"""A KV connector that was made for vLLM, in an engine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, AsyncLLM, SamplingParams
from pegboard.api.connector import KVTransferConfig
from pegboard.errors import ConfigError, PluginError
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_legacy_vllm.base import KVConnectorRole
from pegboard_legacy_vllm.proxy import Proxy

PROMPTS = [[*[3 + n * 7 % 200 for n in range(90)], *([5 + k] * 20)] for k in range(3)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "num_gpu_blocks_override": 64,
    "max_num_batched_tokens": 48,
}


LOOKS = (
    "assert all(c.is_contiguous() and (2, 16) == (c.shape[0], c.shape[2])"
    " for c in kv_caches.values()) and 'model.layers.0.self_attn.attn' in kv_caches"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=5)


def transfer(folder: Path, **more: Any) -> dict[str, Any]:
    extra = {"path": str(folder), **more}
    return {"kv_connector": "shelf", "kv_connector_extra_config": extra}


def answers(model: Path, **options: Any) -> tuple[list[list[int]], int]:
    """Tokens, and how many prompt tokens came from outside."""
    with LLM(str(model), **{**OPTIONS, **options}) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        if "kv_transfer_config" in options:
            (row,) = [row for row in llm.plugins() if row["id"] == "shelf_kv"]
            assert (row["distribution"], row["used"]) == ("acme-shelf", ["connector:shelf"])
        found = llm.engine.stats().cache.external_hit_tokens
    return [list(output.outputs[0].token_ids) for output in outputs], found


@pytest.mark.parametrize("later", [False, pytest.param(True, marks=pytest.mark.accept)])
def test_what_one_engine_saved_another_loads_and_answers_alike(
    packages: Any, model: Path, tmp_path: Path, later: bool
) -> None:
    change_shelf(packages, "self.caches = kv_caches", f"self.caches = kv_caches\n        {LOOKS}")
    expected, _ = answers(model)
    kv = tmp_path / "kv"
    # Planned ahead, a request may find in files what the one before it saved a moment ago.
    first = answers(model, kv_transfer_config=transfer(kv, later=later), async_scheduling=False)
    assert first == (expected, 0)
    assert len(list(kv.iterdir())) == 5 + 3, "the blocks that all have, and those of each"
    again, found = answers(model, kv_transfer_config=transfer(kv, later=later))
    assert again == expected and found > 96
    assert "vllm" not in sys.modules


@pytest.mark.accept
def test_a_block_that_cannot_be_read_is_computed_and_not_saved_from(
    packages: Any, model: Path, tmp_path: Path
) -> None:
    packages.add_shelf()
    expected, _ = answers(model, kv_transfer_config=transfer(tmp_path / "kv"))
    for number, path in enumerate(sorted((tmp_path / "kv").iterdir())):
        path.write_bytes(b"") if number % 2 else path.unlink()
    again, _ = answers(model, kv_transfer_config=transfer(tmp_path / "kv"))
    assert again == expected
    third, _ = answers(model, kv_transfer_config=transfer(tmp_path / "kv"))
    assert third == expected


@pytest.mark.accept
def test_a_consumer_saves_nothing(packages: Any, model: Path, tmp_path: Path) -> None:
    packages.add_shelf()
    config = {**transfer(tmp_path / "kv"), "kv_role": "kv_consumer"}
    answers(model, kv_transfer_config=config)
    assert not list((tmp_path / "kv").iterdir())


async def _answers_of(llm: AsyncLLM) -> list[Any]:
    async def last(prompt: list[int]) -> Any:
        return [output async for output in llm.generate(prompt, GREEDY)][-1]

    return await asyncio.wait_for(asyncio.gather(*map(last, PROMPTS)), 120)


@pytest.mark.accept
def test_an_engine_in_a_process_of_its_own_uses_it_too(
    packages: Any, model: Path, tmp_path: Path
) -> None:
    packages.add_shelf()
    config = transfer(tmp_path / "kv")
    expected, _ = answers(model, kv_transfer_config=config)
    llm = AsyncLLM(str(model), **OPTIONS, kv_transfer_config=config)
    try:
        outputs = asyncio.run(_answers_of(llm))
    finally:
        llm.close()
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    assert [output.num_cached_tokens for output in outputs] == [96] * 3


def proxy(folder: Path, **extra: Any) -> Proxy:
    config = KVTransferConfig(
        kv_connector="shelf", kv_connector_extra_config={"path": str(folder), **extra}
    )
    target = ("shelf_kv.connector", "ShelfConnector")
    return Proxy([target], KVConnectorRole.SCHEDULER, config, 16, "float32")


def change_shelf(packages: Any, old: str, new: str) -> None:
    packages.add_shelf()
    file = packages.folder / "shelf_kv" / "connector.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_settings_that_it_does_not_take_are_the_operators_mistake(
    packages: Any, tmp_path: Path
) -> None:
    packages.add_shelf()
    with pytest.raises(ConfigError, match=r"'shelf' refuses its settings.*unknown: shape"):
        proxy(tmp_path, shape=1)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("logger = init", "import vllm.utils\nlogger = init", "imports vllm.utils"),
        ("import VllmConfig", "import VllmConfig, ModelConfig", "needs vllm.config.ModelConfig"),
        ("cache_config.block_size", "scheduler_config.policy", "VllmConfig.scheduler_config"),
        ("cache_config.block_size", "cache_config.swap", "reads cache_config.swap"),
        ("def wait_for_save", "def handle_preemptions", "has the method handle_preemptions"),
        ("(KVConnectorBase_V1):", ":", "does not derive from KVConnectorBase_V1"),
        ("ShelfConnector(", "OtherConnector(", "does not derive from KVConnectorBase_V1"),
        (
            "@dataclass",
            "KVConnectorBase_V1.shutdown = print\n@dataclass",
            "assigns KVConnectorBase_V1.shutdown",
        ),
    ],
)
def test_a_class_that_needs_more_is_refused_by_name(
    packages: Any, tmp_path: Path, old: str, new: str, said: str
) -> None:
    change_shelf(packages, old, new)
    with pytest.raises(PluginError) as raised:
        proxy(tmp_path)
    assert said in str(raised.value)
    assert "'shelf' (shelf_kv.connector:ShelfConnector)" in str(raised.value)
    assert "vllm" not in sys.modules


def test_what_is_refused_in_a_step_is_a_fault_and_not_the_engines_end(
    packages: Any, tmp_path: Path
) -> None:
    change_shelf(packages, "logger.info_once", "from vllm import envs; print")
    with pytest.raises(RuntimeError, match=r"needs vllm\.envs") as raised:
        proxy(tmp_path).call("wait_for_save")
    assert not isinstance(raised.value, PluginError)


def test_an_older_class_is_not_given_what_it_does_not_take(packages: Any, tmp_path: Path) -> None:
    change_shelf(packages, "role: KVConnectorRole, kv_cache_config=None", "role: KVConnectorRole")
    file = packages.folder / "shelf_kv" / "connector.py"
    file.write_text(file.read_text().replace("role, kv_cache_config)", "role)"))
    assert proxy(tmp_path).call("has_connector_metadata") is False
