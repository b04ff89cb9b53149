"""Choosing versions of ops."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from pegboard.api.ops import OpVersion
from pegboard.errors import DuplicateError, PluginError
from pegboard.nn import OPS, OpTable


def version(name: str, op: str = "rms_norm", **conditions: Any) -> OpVersion:
    return OpVersion(name, op, "operator:add", **conditions)


def chosen(*versions: OpVersion, **conditions: Any) -> str:
    wanted = {"platform": "cpu", "dtype": "float32"} | conditions
    return OpTable.choose(versions, **wanted).choices()["rms_norm"]


def test_a_plain_table_has_every_op_in_its_plain_version() -> None:
    table = OpTable.plain()
    assert set(table.choices().values()) == {"plain"}
    assert all(table[name] is op.plain for name, op in OPS.items())


def test_the_version_of_highest_priority_whose_conditions_hold_is_taken() -> None:
    low, high = version("low"), version("high", priority=5)
    assert chosen(low, high) == "high"
    assert chosen(version("low"), version("gpu", priority=5, platforms=("cuda",))) == "low"
    assert chosen(version("half", dtypes=("bfloat16",))) == "plain"
    assert chosen(version("half", dtypes=("bfloat16",)), dtype="bfloat16") == "half"


def test_batch_invariance_admits_only_versions_that_declare_it() -> None:
    fast, steady = version("fast", priority=9), version("steady", batch_invariant=True)
    assert chosen(fast, steady) == "fast"
    assert chosen(fast, steady, batch_invariant=True) == "steady"
    assert chosen(fast, batch_invariant=True) == "plain"


def test_a_chosen_version_is_loaded_and_others_stay_plain() -> None:
    table = OpTable.choose([version("mine")], platform="cpu", dtype="float32")
    assert table["rms_norm"] is operator.add
    assert table["rope"] is OPS["rope"].plain


def test_versions_that_are_not_chosen_are_not_imported() -> None:
    absent = OpVersion("absent", "rope", "no_such_module:x", platforms=("cuda",))
    assert OpTable.choose([absent], platform="cpu", dtype="float32").choices()["rope"] == "plain"


def test_a_version_of_an_op_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PluginError, match="'fft', which does not exist"):
        chosen(version("odd", op="fft"))


def test_two_versions_of_one_name_are_refused() -> None:
    with pytest.raises(DuplicateError, match="'twin'"):
        chosen(version("twin"), version("twin", op="rope"))
    with pytest.raises(DuplicateError, match="'plain'"):
        chosen(version("plain"))


def test_a_tie_names_both_versions() -> None:
    with pytest.raises(PluginError, match="'a' and 'b' both hold"):
        chosen(version("b"), version("a"))


def test_asking_for_an_unknown_op_names_the_known_ones() -> None:
    with pytest.raises(PluginError, match="rms_norm"):
        OpTable.plain()["fft"]


def test_the_choices_are_a_copy() -> None:
    table = OpTable.plain()
    table.choices()["rms_norm"] = "other"
    assert table.choices()["rms_norm"] == "plain"
