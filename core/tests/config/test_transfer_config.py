"""``kv_transfer_config``: mappings, JSON, and what is refused before anything is loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pegboard import EngineConfig
from pegboard.api.connector import ConnectorAbilities, KVConnector, KVTransferConfig
from pegboard.api.kv import KVLayout, KVSlot
from pegboard.config.connect import accepted_layouts, require_connector
from pegboard.errors import ConfigError, MissingPluginError, SelectionError, UnsupportedError
from pegboard.kv import form_groups
from pegboard.plugins import Board, build_board
from pegboard.testing.toy_kinds import TOY_KINDS

GIVEN = {
    "kv_connector": "cellar",
    "kv_role": "kv_consumer",
    "engine_id": "one",
    "kv_connector_extra_config": {"path": "here"},
    "kv_load_failure_policy": "fail",
}


def board_with(abilities: ConnectorAbilities) -> Board:
    connector = KVConnector("cellar", "nowhere:scheduler", "nowhere:worker", abilities)
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=[("connector", connector)])


def groups_of(kinds: str) -> Any:
    return form_groups([KVSlot(n, "self", spec) for n, spec in enumerate(TOY_KINDS[kinds])], 8)


@pytest.mark.parametrize("form", [dict, json.dumps, lambda given: KVTransferConfig(**given)])
def test_a_mapping_its_json_and_the_class_mean_the_same(form: Any) -> None:
    config = EngineConfig(model="m", kv_transfer_config=form(GIVEN)).kv_transfer_config
    assert config == KVTransferConfig(**GIVEN)
    assert config.loads
    assert not config.saves


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_conector": "x"}, "'kv_conector' is not one of .*did you mean 'kv_connector'"),
        ({"kv_role": "kv_both"}, "'kv_connector' is missing"),
        ({"kv_connector": ""}, "kv_connector='' is not allowed"),
        ({"kv_connector": "x", "kv_role": "both"}, "kv_role='both'.*kv_producer"),
        ({"kv_connector": "x", "kv_load_failure_policy": "skip"}, "'skip'.*recompute, fail"),
        ({"kv_connector": "x", "kv_connector_extra_config": [1]}, "kv_connector_extra_config"),
        ({"kv_connector": "x", "engine_id": 5}, "engine_id=5"),
        ("{", "a JSON object"),
        ("[" * 100_000, "a JSON object"),
        ('{"kv_connector": "a", "kv_connector": "b"}', "key 'kv_connector' is there twice"),
        ("[1]", "a mapping or a JSON object"),
    ],
)
def test_bad_settings_are_refused_with_key_and_value(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineConfig(model="m", kv_transfer_config=given)


def test_a_connector_that_is_not_there_is_named() -> None:
    board = build_board(environ={"VLLM_PLUGINS": ""})
    with pytest.raises(MissingPluginError, match=r"KV connector 'cellar'.*kv_transfer_config"):
        require_connector(board, KVTransferConfig(kv_connector="cellar"), groups_of("full"))


@pytest.mark.parametrize(
    ("kinds", "abilities", "said"),
    [
        ("sliding and full", ConnectorAbilities(kinds=()), "one KV group, this one has"),
        ("sliding", ConnectorAbilities(), "kind 'sliding', it serves full"),
        ("cross and full", ConnectorAbilities(groups=True, kinds=()), "'cellar'.*cross"),
        ("state without copies", ConnectorAbilities(groups=True, kinds=()), "recurrent"),
    ],
)
def test_a_model_that_a_connector_cannot_serve_is_refused_by_name(
    kinds: str, abilities: ConnectorAbilities, said: str
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        require_connector(
            board_with(abilities), KVTransferConfig(kv_connector="cellar"), groups_of(kinds)
        )


def test_the_first_layout_that_both_sides_know_is_taken() -> None:
    offered = [KVLayout(name, ("block", "token", "dim")) for name in ("a", "b", "c")]
    only = KVConnector("cellar", "n:s", "n:w", ConnectorAbilities(layouts=("c", "b")))
    assert [layout.name for layout in accepted_layouts(only, offered, "it")] == ["b", "c"]
    other = KVConnector("cellar", "n:s", "n:w", ConnectorAbilities(layouts=("z",)))
    with pytest.raises(SelectionError, match="it offers a, b, c; KV connector 'cellar' handles z"):
        accepted_layouts(other, offered, "it")
