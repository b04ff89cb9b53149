"""What decoder families derive from several keys of a configuration."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pegboard.api.kv import FullAttentionSpec, KVSlot, SlidingWindowSpec
from pegboard.errors import ConfigError
from pegboard.nn import attention_size, decoder_facts, window_slots


def test_the_head_size_is_given_or_the_hidden_size_shared_out() -> None:
    assert attention_size(64, 4, 2) == 16
    assert attention_size(64, 4, 2, 24) == 24
    assert attention_size(66, 4, 2, 24) == 24


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((66, 4, 2, None), "hidden size 66 is not a multiple of the 4 attention heads"),
        ((64, 4, 3, None), "4 attention heads are not a multiple of 3 key-value heads"),
        ((64, 4, 3, 15), "4 attention heads are not a multiple of 3 key-value heads"),
        ((64, 4, 2, 15), "head size 15 is odd, so it cannot be rotated in pairs"),
        ((60, 4, 2, None), "head size 15 is odd, so it cannot be rotated in pairs"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(
    sizes: tuple[int, int, int, int | None], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        attention_size(*sizes)
    assert str(caught.value) == said


def test_each_layer_has_a_slot_with_its_window() -> None:
    full = FullAttentionSpec(2, 16, "auto")
    sliding = SlidingWindowSpec(2, 16, "auto", window=8)
    slots = window_slots("attention", 2, 16, [None, 8])
    assert slots == (KVSlot(0, "attention", full), KVSlot(1, "attention", sliding))


def test_the_facts_take_their_sizes_from_the_fields_of_a_family() -> None:
    values = {
        "layers": 1,
        "hidden_size": 64,
        "vocab_size": 100,
        "max_positions": 256,
        "inner_size": 96,
    }
    slots = window_slots("attention", 2, 16, [None])
    facts = decoder_facts(values, slots, eos_token_ids=(2,))
    assert (facts.layers, facts.hidden_size, facts.vocab_size) == (1, 64, 100)
    assert (facts.max_positions, facts.kv_slots, facts.eos_token_ids) == (256, slots, (2,))


def test_all_this_is_imported_without_torch() -> None:
    code = (
        "import sys; from pegboard.nn import attention_size, decoder_facts, window_slots; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
