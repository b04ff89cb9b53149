"""What an engine uses: in `LLM.plugins`, and in one line of the log at its start."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pegboard import LLM, EngineConfig, SamplingParams
from pegboard.__about__ import __version__
from pegboard.api.alias import ModelAlias
from pegboard.api.connector import KVConnector
from pegboard.api.events import EventPublisher
from pegboard.api.quant import QuantFormat
from pegboard.engine.provenance import used_names
from pegboard.plugins import Board, build_board, load_plugins
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.families import TINY_FAMILY

SMALL = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16, "max_num_seqs": 4}
FACTS = {"attention": ["a+b", "a"], "ops": {"rope": "x.rope", "linear": "plain"}, "platform": "p"}


def test_an_engine_tells_what_is_installed_loaded_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = logging.getLogger("pegboard")
    monkeypatch.setattr(root, "propagate", True)
    monkeypatch.setattr(root, "handlers", [])
    caplog.set_level("INFO", "pegboard")
    with LLM(write_tiny_model(tmp_path), platform="null", **SMALL) as llm:
        rows = {row["id"]: row for row in llm.plugins()}
        backends = llm.engine.core.executor.facts()["attention"]
    kit = rows["testkit"]
    assert (kit["distribution"], kit["installed"]) == ("pegboard-testkit", __version__)
    assert kit["loaded"] and kit["state"] == "ready"
    assert {"model:tiny", "platform:null"} <= set(kit["used"])
    core = {"checkpoint:hf", "scheduler:token-budget", "tokenizer:hf"}
    assert core <= set(rows["core"]["used"])
    assert rows["cpu"]["loaded"] and rows["cpu"]["used"] == []
    assert any(f"attention:{backends[0]}" in row["used"] for row in rows.values())
    (banner,) = [r for r in caplog.records if r.getMessage() == "engine ready"]
    fields = banner.pegboard_fields
    assert banner.levelname == "INFO"
    assert fields["family"] == f"tiny (pegboard-testkit {__version__})"
    assert fields["platform"] == f"null (pegboard-testkit {__version__})"
    assert fields["scheduler"] == f"token-budget (pegboard-core {__version__})"
    assert fields["tokenizer"] == f"hf (pegboard-core {__version__})"
    assert fields["path"] == str(tmp_path)


def test_an_alias_is_used_and_a_tokeniser_that_is_not_wanted_is_not(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json").read_text().replace("PegboardTiny", "OwnForCausalLM")
    )
    extra = [("alias", ModelAlias("OwnForCausalLM", of="tiny"))]
    options: Any = {"platform": "null", "skip_tokenizer_init": True, **SMALL}
    with LLM(str(tmp_path), board=load_plugins(extra=extra), **options) as llm:
        used = {name for row in llm.plugins() for name in row["used"]}
    assert {"alias:OwnForCausalLM", "model:tiny"} <= used
    assert not [name for name in used if name.startswith("tokenizer:")]


def board(*extra: tuple[str, Any]) -> Board:
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=[("model", TINY_FAMILY), *extra])


def used(on: Board, types: tuple[str, ...] = (), keys: Any = None, **options: Any) -> Any:
    raw = {} if keys is None else {"quantization_config": keys}
    tensors = {name: SimpleNamespace(stored_type=name) for name in types}
    checkpoint = SimpleNamespace(kind="hf", config=raw, tensors=tensors)
    model: Any = SimpleNamespace(checkpoint=checkpoint, family=TINY_FAMILY)
    return used_names(on, EngineConfig(model="m", **options), model, FACTS)


def test_each_surface_names_what_is_used_once() -> None:
    assert used(board()) == {
        "attention": ("a", "b"),
        "checkpoint": ("hf",),
        "executor": ("local",),
        "model": ("tiny",),
        "ops": ("x.rope",),
        "platform": ("p",),
        "scheduler": ("token-budget",),
    }


def test_the_executor_that_nobody_names_is_told_of() -> None:
    assert used(board(), tensor_parallel_size=2)["executor"] == ("ranks",)
    assert used(board(), distributed_executor_backend="odd")["executor"] == ("odd",)


def test_a_logits_processor_is_used_once_a_request_asks_for_it(tmp_path: Path) -> None:
    options: Any = {"platform": "null", "logits_processors": ["scripted-gap"], **SMALL}
    with LLM(write_tiny_model(tmp_path), **options) as llm:

        def processors() -> set[str]:
            names = {name for row in llm.plugins() for name in row["used"]}
            return {name for name in names if name.startswith("logits:")}

        assert processors() == {"logits:scripted-gap"}
        for arguments in (None, {"scripted_parity": 0}):
            params = SamplingParams(max_tokens=1, extra_args=arguments)
            llm.generate([[3, 4, 5]], params, use_tqdm=False)
        assert processors() == {"logits:scripted-gap", "logits:scripted-parity"}


def test_connectors_inside_of_others_are_used_too() -> None:
    parts = ("x:scheduler", "x:worker")
    on = board(*(("connector", KVConnector(name, *parts)) for name in ("many", "disk", "net")))
    inner = [{"kv_connector": "disk"}, {"kv_connector": "absent"}]
    transfer = {"kv_connector": "many", "kv_connector_extra_config": {"connectors": inner}}
    assert used(on, kv_transfer_config=transfer)["connector"] == ("many", "disk")


def test_the_publisher_is_used_where_events_are_on() -> None:
    on = board(("events", EventPublisher("wire", "x:open")))
    wanted = {"enable_kv_cache_events": True}
    assert used(on, kv_events_config=wanted)["events"] == ("wire",)
    assert "events" not in used(on, kv_events_config=wanted | {"publisher": "null"})


@pytest.mark.parametrize(
    ("types", "keys", "options", "found"),
    [
        (("F32", "BF16"), None, {}, None),
        (("F32", "SIX_0"), None, {}, ("six",)),
        (("SIX_0",), None, {"load_format": "dummy"}, None),
        ((), {"quant_method": "7"}, {}, ("seven",)),
        (("SIX_0",), None, {"quantization": "7"}, ("seven", "six")),
        ((), None, {"quantization": "seven"}, ("seven",)),
    ],
)
def test_formats_are_those_of_the_settings_and_of_the_file(
    types: tuple[str, ...], keys: Any, options: Any, found: Any
) -> None:
    formats = (
        QuantFormat("six", "x:make", stored_types=("SIX_0",)),
        QuantFormat("seven", "x:make", methods=("7",)),
    )
    on = board(*(("quant", item) for item in formats))
    assert used(on, types, keys, **options).get("quant") == found


def test_what_is_named_by_module_path_belongs_to_no_plugin() -> None:
    on = board()
    names = used(on, scheduler_cls="some.module:Thing")
    assert names["scheduler"] == ("some.module:Thing",)
    rows = on.report(names)
    assert not any("some.module" in str(row["used"]) for row in rows)
    assert all(row["used"] is None for row in on.report())
