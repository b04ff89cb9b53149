"""What an engine needs to know of a model before any tensor is read. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, cast

import attrs

from pegboard.api.checkpoint import PLAIN_TYPES, Checkpoint, StoredTensor, TokenizerSpec
from pegboard.api.kv import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVSlot,
    KVSpec,
    RecurrentSpec,
    SlidingWindowSpec,
    StateMode,
)
from pegboard.api.model import ConfigInput, FamilyConfig, ModelFacts, ModelFamily
from pegboard.config.alias import resolve_alias
from pegboard.config.bounds import check_layer_counts, check_sizes
from pegboard.config.engine import DTYPES, FP8, EngineConfig
from pegboard.config.facts import check_facts
from pegboard.config.generation import sampling_defaults, token_ids, united_ids
from pegboard.config.ranks import check_ranks
from pegboard.config.sources import open_checkpoint
from pegboard.config.tokenizer import AUTO, find_tokenizer
from pegboard.errors import CheckpointError, ConfigError, UnsupportedError
from pegboard.weights.header import STORED_DTYPES

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = [
    "ResolvedModel",
    "apply_cache_settings",
    "choose_dtype",
    "choose_max_model_len",
    "estimate_weight_bytes",
    "resolve_model",
]

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@attrs.frozen(eq=False)
class ResolvedModel:
    """A checkpoint, the family that builds it, and every decision that follows from both and the
    settings."""

    path: str
    checkpoint: Checkpoint = attrs.field(repr=False)
    architecture: str
    family: ModelFamily
    family_config: FamilyConfig = attrs.field(repr=False)
    facts: ModelFacts = attrs.field(repr=False)
    """With the dtype of every KV slot decided; of several ranks, with the slots of one."""
    dtype: str
    """Compute dtype by torch name."""
    max_model_len: int
    sampling_defaults: Mapping[str, Any]
    """Keyword arguments of `SamplingParams` that the model's authors recommend."""
    eos_token_ids: tuple[int, ...]
    """Of configuration, generation configuration and tokeniser together."""
    weight_bytes: int
    """Estimate of what the weights take on the device, or on that of each rank."""
    quantised: bool
    """The configuration names a quantisation, or weights are stored in block types."""
    tokenizer: TokenizerSpec | None = attrs.field(repr=False)
    tokenizer_problem: str = ""
    """Why `tokenizer` is None."""

    def on_device(self, config: EngineConfig, supported: Sequence[str]) -> ResolvedModel:
        """The same model for a device that computes in the dtypes `supported`, the preferred first.

        Raises `ConfigError` if ``config.dtype`` is not among them.
        """
        stored, tensors = self.family_config.facts, self.checkpoint.tensors.values()
        dtype = choose_dtype(config.dtype, stored.stored_dtype, self.quantised, supported)
        return attrs.evolve(
            self,
            dtype=dtype,
            facts=apply_cache_settings(stored, config, dtype, self.max_model_len),
            weight_bytes=estimate_weight_bytes(tensors, dtype) // config.tensor_parallel_size,
        )


def resolve_model(
    board: Board, config: EngineConfig, *, supported: Sequence[str] | None = None
) -> ResolvedModel:
    """Find, open and understand the model that `config` names.

    `supported` are the device's compute dtypes, the preferred first; None while no device is
    chosen: the checkpoint's own dtype is then taken for supported, and `ResolvedModel.on_device`
    decides again.

    Raises `CheckpointError`, `ConfigError`, `MissingPluginError` (no family for the architecture,
    no source for the file) and `UnsupportedError`; each names what is to be changed.
    """
    checkpoint = open_checkpoint(board, config.model, config.revision)
    try:
        known = resolve_alias(board, checkpoint)
        return _understand(board, config, known, supported)
    except BaseException:
        checkpoint.close()
        raise


def _understand(
    board: Board, config: EngineConfig, checkpoint: Checkpoint, supported: Sequence[str] | None
) -> ResolvedModel:
    """Every decision, from an opened checkpoint."""
    tensors = checkpoint.tensors
    if not tensors and config.load_format != "dummy":
        raise CheckpointError(_no_weights(checkpoint))
    family, architecture = _family(board, checkpoint)
    check_layer_counts(checkpoint)
    settings = board.settings("model", family.name)
    family_config = _family_config(family, architecture, checkpoint, settings)
    facts = family_config.facts
    check_facts(family.name, facts)
    check_ranks(config.tensor_parallel_size, family, facts)
    check_sizes(checkpoint, facts)
    quantised = _is_quantised(checkpoint)
    dtype = choose_dtype(config.dtype, facts.stored_dtype, quantised, supported)
    max_model_len = choose_max_model_len(config.max_model_len, facts)
    tokenizer, problem = _tokenizer(board, checkpoint, config)
    return ResolvedModel(
        path=checkpoint.path,
        checkpoint=checkpoint,
        architecture=architecture,
        family=family,
        family_config=family_config,
        facts=apply_cache_settings(facts, config, dtype, max_model_len),
        dtype=dtype,
        max_model_len=max_model_len,
        sampling_defaults=sampling_defaults(
            checkpoint.generation_defaults, f"{checkpoint.path}: generation defaults"
        ),
        eos_token_ids=_eos_ids(checkpoint, facts, tokenizer),
        weight_bytes=estimate_weight_bytes(tensors.values(), dtype) // config.tensor_parallel_size,
        quantised=quantised,
        tokenizer=tokenizer,
        tokenizer_problem=problem,
    )


def _no_weights(checkpoint: Checkpoint) -> str:
    return (
        f"{checkpoint.path}: this checkpoint of kind {checkpoint.kind!r} holds no weights (a "
        f"directory needs "
        "model.safetensors, or model.safetensors.index.json and its shards); load_format='dummy' "
        "runs with random ones"
    )


def _is_quantised(checkpoint: Checkpoint) -> bool:
    """Whether the configuration says so, or a tensor has a block type; plain integers may be mere
    buffers."""
    types = {tensor.stored_type for tensor in checkpoint.tensors.values()}
    return bool(checkpoint.config.get("quantization_config")) or bool(types - STORED_DTYPES.keys())


def _family(board: Board, checkpoint: Checkpoint) -> tuple[ModelFamily, str]:
    """The family that claims one of the checkpoint's architectures, the preferred first."""
    families = board.registry("model")
    claims = {f"{checkpoint.kind}:{name}": name for name in checkpoint.architectures}
    for claim, name in claims.items():
        if claim in families:
            return board.require("model", claim, wanted_by=checkpoint.path), name
    if not claims:
        raise CheckpointError(f"{checkpoint.path}: names no architecture")
    first = next(iter(claims))
    return board.require("model", first, wanted_by=checkpoint.path), claims[first]


def _family_config(
    family: ModelFamily, architecture: str, checkpoint: Checkpoint, settings: Any
) -> FamilyConfig:
    source = ConfigInput(
        raw=checkpoint.config,
        kind=checkpoint.kind,
        architecture=architecture,
        tensor_names=frozenset(checkpoint.tensors),
        tensor_shapes={name: tensor.shape for name, tensor in checkpoint.tensors.items()},
        settings=settings,
    )
    family_config: FamilyConfig = family.config.load()(source)
    return family_config


def _tokenizer(
    board: Board, checkpoint: Checkpoint, config: EngineConfig
) -> tuple[TokenizerSpec | None, str]:
    """The tokeniser, or why there is none: token ids can be given without it.

    One that is there and broken is a fault of the checkpoint, if it is to be loaded.
    """
    if config.skip_tokenizer_init:
        return None, "skip_tokenizer_init=True"
    mode = AUTO if config.tokenizer is not None else config.tokenizer_mode
    try:
        return find_tokenizer(board, checkpoint.path, checkpoint.tokenizer, mode), ""
    except UnsupportedError as error:
        return None, str(error)


def _eos_ids(
    checkpoint: Checkpoint, facts: ModelFacts, tokenizer: TokenizerSpec | None
) -> tuple[int, ...]:
    """End ids united: none of the three places is complete in every checkpoint."""
    generation = token_ids(
        checkpoint.generation_defaults.get("eos_token_id"),
        f"{checkpoint.path}: eos_token_id of the generation defaults",
    )
    own = tokenizer.eos_token_ids if tokenizer is not None else ()
    return united_ids(facts.vocab_size, facts.eos_token_ids, generation, own)


def choose_dtype(
    requested: str, stored: str, quantised: bool, supported: Sequence[str] | None
) -> str:
    """The compute dtype.

    `requested` other than ``"auto"`` is taken, or refused with `ConfigError` if the device lacks
    it. ``"auto"``: the checkpoint's own (float32 for float64); for quantised weights bfloat16, the
    dtype that their fast kernels take; where the device lacks that, float32, which holds every
    value of float16 and bfloat16 exactly, or else the device's preferred one.
    """
    if requested != "auto":
        if supported is not None and requested not in supported:
            raise ConfigError(
                f"dtype={requested!r} is not allowed on this device: one of auto, "
                f"{', '.join(supported)}"
            )
        return requested
    wanted = "float32" if stored == "float64" else stored
    if quantised:
        wanted = "bfloat16"
    if wanted not in DTYPES:
        raise ConfigError(
            f"dtype='auto': the checkpoint's dtype {stored!r} is none to compute in; name one of "
            f"{', '.join(DTYPES[1:])}"
        )
    if supported is None or wanted in supported:
        return wanted
    return "float32" if "float32" in supported else supported[0]


def choose_max_model_len(requested: int | None, facts: ModelFacts) -> int:
    """The context length: `requested`, or all positions of the model.

    Raises `ConfigError` if it is longer than the model's positions, `UnsupportedError` if it is
    longer than what the family can compute now (``ModelFacts.position_limit``).
    """
    if requested is not None and requested > facts.max_positions:
        raise ConfigError(
            f"max_model_len={requested} is not allowed: the model was made for at most "
            f"{facts.max_positions} positions"
        )
    chosen = facts.max_positions if requested is None else requested
    if facts.position_limit is not None and chosen > facts.position_limit[0]:
        limit, reason = facts.position_limit
        raise UnsupportedError(
            f"max_model_len={chosen} is not supported: {reason}; set max_model_len to at most "
            f"{limit}"
        )
    return chosen


def _cache_dtype(config: EngineConfig, dtype: str) -> str:
    return dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def apply_cache_settings(
    facts: ModelFacts, config: EngineConfig, dtype: str, max_model_len: int
) -> ModelFacts:
    """`facts` with ``"auto"`` in KV slots replaced by the cache dtype, with the mode of states that
    the settings ask for, with full attention where a window or chunk holds the whole context, and
    with the share of one rank where there are several.
    """
    cache_dtype = _cache_dtype(config, dtype)
    state_dtype = dtype if cache_dtype == FP8 else cache_dtype
    dtypes = cache_dtype, state_dtype
    slots = tuple(_slot(slot, config, dtypes, max_model_len) for slot in facts.kv_slots)
    return attrs.evolve(facts, kv_slots=slots)


def _slot(
    slot: KVSlot, config: EngineConfig, dtypes: tuple[str, str], max_model_len: int
) -> KVSlot:
    """`dtypes` are those of keys and values, and of states, whose errors would add up in 8 bits."""
    if slot.spec is None:
        return slot
    spec: KVSpec = slot.spec.with_dtype(dtypes[isinstance(slot.spec, RecurrentSpec)])
    if isinstance(spec, RecurrentSpec):
        spec = attrs.evolve(spec, cache=_state_mode(spec, config))
    elif isinstance(spec, (SlidingWindowSpec, ChunkedLocalSpec)):
        reach = spec.window if isinstance(spec, SlidingWindowSpec) else spec.chunk
        if reach >= max_model_len:  # nothing ever leaves it: one kind of group less to plan for
            heads, size, own = spec.kv_heads, spec.head_size, spec.value_head_size
            spec = FullAttentionSpec(heads, size, spec.dtype, own)
    if config.tensor_parallel_size > 1:
        spec = spec.on_rank(config.tensor_parallel_size)
    return attrs.evolve(slot, spec=spec)


def _state_mode(spec: RecurrentSpec, config: EngineConfig) -> StateMode:
    """No copies of states are kept if nobody could hit them."""
    if not config.enable_prefix_caching:
        return "none"
    asked = config.mamba_cache_mode
    return spec.cache if asked == "auto" else cast(StateMode, asked)


def estimate_weight_bytes(tensors: Iterable[StoredTensor], dtype: str) -> int:
    """Bytes of all tensors on the device: plain types at the compute dtype, others as stored."""
    item = _ITEM_BYTES[dtype]
    return sum(
        prod(tensor.shape) * item if tensor.stored_type in PLAIN_TYPES else tensor.nbytes
        for tensor in tensors
    )
