"""Recurrent groups choose among backends that know their mixer."""

from __future__ import annotations

import pytest

from pegboard.api.attention import AttentionBackend
from pegboard.api.kv import KVGroup, RecurrentSpec, StateTensor
from pegboard.errors import SelectionError
from pegboard.runner.mixers import PLAIN_MIXERS
from pegboard.runner.select import BackendWish, choose_backend

STATES = (StateTensor("s", (4,), "float32"),)
GROUP = KVGroup(0, RecurrentSpec(STATES), 16, ("0.state",))
ODD = KVGroup(0, RecurrentSpec(STATES, mixer="odd"), 16, ("0.state",))
WISH = BackendWish(platform="cpu", dtype="bfloat16")
FULL_ONLY = AttentionBackend("paged", "m:k", kinds=("full",), kv_dtypes=("bfloat16",))


def test_the_plain_kernel_serves_where_nothing_better_is_installed() -> None:
    assert choose_backend([FULL_ONLY, *PLAIN_MIXERS], GROUP, WISH).name == "plain"


def test_a_backend_that_knows_the_mixer_is_preferred() -> None:
    swift = AttentionBackend("swift", "m:k", kinds=("recurrent",), mixers=("gated-linear",))
    assert choose_backend([swift, *PLAIN_MIXERS], GROUP, WISH).name == "swift"


def test_a_backend_without_inner_borders_is_passed_over_in_mode_all() -> None:
    swift = AttentionBackend("swift", "m:k", kinds=("recurrent",), mixers=("gated-linear",))
    wish = BackendWish("cpu", "bfloat16", features=frozenset({"state_borders"}))
    assert choose_backend([swift, *PLAIN_MIXERS], GROUP, wish).name == "plain"


def test_an_unknown_mixer_is_refused_with_every_candidates_reason() -> None:
    with pytest.raises(SelectionError) as caught:
        choose_backend([FULL_ONLY, *PLAIN_MIXERS], ODD, WISH)
    for words in (
        "recurrent states of mixer 'odd'",
        "paged (priority 0): kind recurrent is not among full",
        "plain (priority -100): mixer odd is not among gated-linear",
    ):
        assert words in str(caught.value)
