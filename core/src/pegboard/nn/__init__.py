"""What model families are built from: layers with weights, blocks, and the table of named ops.

Names are imported when they are first used, so that a family's configuration reader can take the
torch-free ones (`ConfigReader`, `RopeConfig`, `read_rope`, `RecurrentShape`, `attention_size`,
`window_slots`, `decoder_facts`) in processes that hold no tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pegboard.nn.attention import Attention, CacheScales
    from pegboard.nn.blocks import (
        AttentionBlock,
        AttentionShape,
        Decoder,
        DecoderLayer,
        GatedMLP,
        NormedAfter,
    )
    from pegboard.nn.cache_rules import cache_scale_rules
    from pegboard.nn.config import HF_HARMLESS, HF_HARMLESS_PREFIXES, ConfigReader
    from pegboard.nn.decoder_config import attention_size, decoder_facts, window_slots
    from pegboard.nn.layers import Embedding, Head, Linear, RMSNorm
    from pegboard.nn.moe import Experts, MoE
    from pegboard.nn.ops import OPS, Op
    from pegboard.nn.optable import OpTable
    from pegboard.nn.plain import PlainExperts, PlainMethod, plain_method
    from pegboard.nn.recurrent import ConvWeight, RecurrentBlock
    from pegboard.nn.recurrent_shape import RecurrentShape
    from pegboard.nn.rope import Rope
    from pegboard.nn.rope_config import RopeConfig, read_rope
    from pegboard.nn.weighted import Weighted

__all__ = [
    "HF_HARMLESS",
    "HF_HARMLESS_PREFIXES",
    "OPS",
    "Attention",
    "AttentionBlock",
    "AttentionShape",
    "CacheScales",
    "ConfigReader",
    "ConvWeight",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "Experts",
    "GatedMLP",
    "Head",
    "Linear",
    "MoE",
    "NormedAfter",
    "Op",
    "OpTable",
    "PlainExperts",
    "PlainMethod",
    "RMSNorm",
    "RecurrentBlock",
    "RecurrentShape",
    "Rope",
    "RopeConfig",
    "Weighted",
    "attention_size",
    "cache_scale_rules",
    "decoder_facts",
    "plain_method",
    "read_rope",
    "window_slots",
]

_HOMES = {
    "HF_HARMLESS": "config",
    "HF_HARMLESS_PREFIXES": "config",
    "OPS": "ops",
    "Attention": "attention",
    "AttentionBlock": "blocks",
    "AttentionShape": "blocks",
    "CacheScales": "attention",
    "ConfigReader": "config",
    "ConvWeight": "recurrent",
    "Decoder": "blocks",
    "DecoderLayer": "blocks",
    "Embedding": "layers",
    "Experts": "moe",
    "GatedMLP": "blocks",
    "Head": "layers",
    "Linear": "layers",
    "MoE": "moe",
    "NormedAfter": "blocks",
    "Op": "ops",
    "OpTable": "optable",
    "PlainExperts": "plain",
    "PlainMethod": "plain",
    "RMSNorm": "layers",
    "RecurrentBlock": "recurrent",
    "RecurrentShape": "recurrent_shape",
    "Rope": "rope",
    "RopeConfig": "rope_config",
    "Weighted": "weighted",
    "attention_size": "decoder_config",
    "cache_scale_rules": "cache_rules",
    "decoder_facts": "decoder_config",
    "plain_method": "plain",
    "read_rope": "rope_config",
    "window_slots": "decoder_config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
