from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import attrs
import pytest

from pegboard.api.quant import LayerSpec, QuantContext, QuantFormat, SourceTensor
from pegboard.errors import CheckpointError, ConfigError, MissingPluginError, UnsupportedError
from pegboard.plugins import Board, build_board
from pegboard.weights.methods import MethodChooser, method_chooser


@attrs.frozen
class Method:
    """Says who made it, for which layer and in which context."""

    owner: str
    layer: LayerSpec
    ctx: QuantContext | None = None


@attrs.frozen
class Toy:
    """A quantizer that leaves layers whose prefix has ``plain`` in it alone."""

    owner: str
    ctx: QuantContext

    def method(self, layer: LayerSpec) -> Any:
        return None if "plain" in layer.prefix else Method(self.owner, layer, self.ctx)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    module: Any = ModuleType("toy_quantizers_for_tests")
    module.block = lambda ctx: Toy("block", ctx)
    module.whole = lambda ctx: Toy("whole", ctx)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    formats = (
        QuantFormat("block", f"{module.__name__}:block", stored_types=("Q4_1", "Q8_0")),
        QuantFormat("other", f"{module.__name__}:block", stored_types=("Z1",)),
        QuantFormat("whole", f"{module.__name__}:whole", methods=("int4",), stored_types=("I32",)),
    )
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=[("quant", f) for f in formats])


def chooser(
    board: Board, keys: Mapping[str, Any] | None = None, quantization: str | None = None
) -> MethodChooser:
    @attrs.frozen
    class Opened:
        path: str = "folder"
        config: Mapping[str, Any] = {} if keys is None else {"quantization_config": keys}

    opened: Any = Opened()

    def plain(layer: LayerSpec) -> Any:
        return Method("plain", layer)

    return method_chooser(
        board,
        opened,
        dtype="float32",
        platform_facts={"cores": 2},
        quantization=quantization,
        plain=plain,
    )


def layer(*types: str, prefix: str = "layers.0.qkv", kind: Any = "linear") -> LayerSpec:
    parts = tuple((SourceTensor(f"t{i}.weight", t, (4, 32)),) for i, t in enumerate(types))
    return LayerSpec(prefix, kind, 32, (4,) * len(types), sources=parts)


def owner(method: Any) -> str:
    return str(method.owner)


def test_plain_types_and_random_weights_get_the_plain_method(board: Board) -> None:
    choose = chooser(board)
    assert owner(choose(layer("F32", "BF16", "F16"))) == "plain"
    assert owner(choose(LayerSpec("x", "linear", 32, (4,)))) == "plain"


def test_a_stored_type_chooses_the_format_that_claims_it_also_for_mixed_stacks(
    board: Board,
) -> None:
    choose = chooser(board)
    method: Any = choose(layer("Q4_1", "Q8_0", "F16"))
    assert method.owner == "block"
    assert method.ctx == QuantContext("float32", {"cores": 2}, {})
    assert method.layer.prefix == "layers.0.qkv"


def test_a_type_that_nothing_claims_names_layer_and_type(board: Board) -> None:
    with pytest.raises(MissingPluginError) as caught:
        chooser(board)(layer("F32", "Q7_X"))
    for word in ("type:Q7_X", "layers.0.qkv", "folder"):
        assert word in str(caught.value)


def test_one_layer_cannot_have_two_formats(board: Board) -> None:
    with pytest.raises(UnsupportedError, match=r"layers\.0\.qkv.*block, other"):
        chooser(board)(layer("Q4_1", "Z1"))


def test_a_kind_of_layer_that_the_format_does_not_cover_is_refused(board: Board) -> None:
    with pytest.raises(UnsupportedError, match=r"embed.*'block' does not cover .*'embedding'"):
        chooser(board)(layer("Q4_1", prefix="embed", kind="embedding"))


def test_a_format_that_leaves_its_own_type_alone_is_an_error(board: Board) -> None:
    with pytest.raises(
        UnsupportedError, match=r"layers\.0\.plain: quantisation 'block' gives no method"
    ):
        chooser(board)(layer("Q4_1", prefix="layers.0.plain"))


def test_the_checkpoints_method_is_asked_for_every_layer_it_covers(board: Board) -> None:
    choose = chooser(board, {"quant_method": "int4", "bits": 4})
    method: Any = choose(layer("I32"))
    assert method.owner == "whole"
    assert method.ctx.config == {"quant_method": "int4", "bits": 4}
    assert owner(choose(layer("F16", prefix="plain"))) == "plain"
    assert owner(choose(layer("F16", prefix="head", kind="head"))) == "plain"
    with pytest.raises(UnsupportedError, match="gives no method"):
        choose(layer("I32", prefix="plain"))


def test_an_unknown_method_of_the_checkpoint_is_named(board: Board) -> None:
    with pytest.raises(MissingPluginError) as caught:
        chooser(board, {"quant_method": "exotic"})
    assert "method:exotic" in str(caught.value)
    assert "quantization_config of folder" in str(caught.value)


@pytest.mark.parametrize("keys", [{}, {"quant_method": 5}, "awq", []])
def test_quantisation_keys_without_a_method_are_refused(keys: Any, board: Board) -> None:
    with pytest.raises(CheckpointError, match="does not name a quant_method"):
        chooser(board, keys)


@pytest.mark.parametrize("name", ["int4", "whole"])
def test_the_user_may_ask_by_format_or_method_name(name: str, board: Board) -> None:
    assert owner(chooser(board, quantization=name)(layer("F16"))) == "whole"
    assert owner(chooser(board, {"quant_method": "int4"}, name)(layer("F16"))) == "whole"


def test_the_user_and_the_checkpoint_must_agree(board: Board) -> None:
    with pytest.raises(ConfigError, match=r"quantization='block'.*quantised with 'int4'"):
        chooser(board, {"quant_method": "int4"}, "block")


def test_a_quantisation_that_is_not_there_is_named(board: Board) -> None:
    with pytest.raises(MissingPluginError, match="quantization='nothing'"):
        chooser(board, quantization="nothing")
