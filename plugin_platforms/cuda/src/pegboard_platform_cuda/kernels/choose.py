"""From logits to token ids in two launches, without a sort and without a look from the host.

The vocabulary is cut into splits, as many programs per row. The first kernel reads the logits once
and leaves of each split its peak, where that is, and the sum of its weights relative to the peak.
The second one, a program per row, puts the splits together: a greedy row is done then; a random one
finds the split that holds its draw by the running sum of splits (float64), and the token by a scan
of that split alone. A row with filters first finds the least logit that they keep, by a search over
the order of floating-point numbers: each pass over the row (it comes from the L2 cache) measures
what lies at or above seven values, and leaves an eighth of the range.

Floor: one read of the logits. 256 rows of 151,936 bfloat16 take 17 µs at 4.47 TB/s, one row no more
than two launches. With filters each pass adds about 40 instructions for a logit, for 256 rows 40
to 50 µs; bfloat16 needs at most six passes, float32 at most eleven.
"""

# ruff: noqa: B007, PLR0124
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["choose"]

_SPLITS = 64
"""Most splits of a row, one register vector."""
_LEAST_SPLIT = 1024
_TILE = 2048
"""Logits that a pass of the search looks at together."""
_SHIFTS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}
"""Bits of a float32 that are always zero in numbers of a type."""


@triton.jit
def _scale(heat):
    """What a distance of logits is multiplied by to be an exponent of 2; finite."""
    return tl.minimum(1.4426950408889634 / tl.maximum(heat, 1e-30), 1e30)


@triton.jit(do_not_specialize=["plane"])
def _partial_kernel(
    logits, temperature, scratch, row_stride, plane,
    VOCAB: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    ids = split * SPLIT + tl.arange(0, SPLIT)
    x = tl.load(logits + row * row_stride + ids, mask=ids < VOCAB, other=float("-inf"))
    x = x.to(tl.float32)
    peak = tl.max(x, 0)
    place = tl.min(tl.where(x == peak, ids, VOCAB - 1), 0)
    odd = tl.max((x != x).to(tl.int32), 0)
    here = scratch + row * SPLITS + split
    heat = tl.load(temperature + row)
    if heat > 0:
        base = tl.where(peak == float("-inf"), 0.0, peak)
        tl.store(here + 2 * plane, tl.sum(tl.exp2((x - base) * _scale(heat.to(tl.float32))), 0))
    tl.store(here, tl.where(odd > 0, float("nan"), peak))
    tl.store(here + plane, place.to(tl.float32))


@triton.jit
def _number(key, SHIFT: tl.constexpr):
    """The least float32 whose key, cut by `SHIFT` bits, is `key`."""
    bits = (key << SHIFT).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _key(x, SHIFT: tl.constexpr):
    """Place of a float32 in the order of the numbers, without the last `SHIFT` bits."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT).to(tl.int64)


@triton.jit
def _search(
    row, top, scale, cut, floor, target, VOCAB: tl.constexpr, COUNT: tl.constexpr,
    SHIFT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The largest number at or above which the row holds `target`: tokens if `COUNT`, else weight;
    at least `cut`. `floor` is some number that reaches the target, or no more than `cut`."""
    # keys below those of finite numbers belong to no number
    low = _key(tl.maximum(tl.maximum(cut, floor), -3.4028234663852886e38), SHIFT)
    high = _key(top, SHIFT) + 1
    while high - low > 1:
        width = high - low
        p1 = _number(low + width // 8, SHIFT)
        p2 = _number(low + width * 2 // 8, SHIFT)
        p3 = _number(low + width * 3 // 8, SHIFT)
        p4 = _number(low + width * 4 // 8, SHIFT)
        p5 = _number(low + width * 5 // 8, SHIFT)
        p6 = _number(low + width * 6 // 8, SHIFT)
        p7 = _number(low + width * 7 // 8, SHIFT)
        zero = tl.zeros([TILE], tl.float32)
        s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero
        for start in range(0, VOCAB, TILE):
            ids = start + tl.arange(0, TILE)
            x = tl.load(row + ids, mask=ids < VOCAB, other=float("-inf")).to(tl.float32)
            weight = zero + 1.0 if COUNT else tl.exp2((x - top) * scale)
            s1 += tl.where(x >= p1, weight, 0.0)
            s2 += tl.where(x >= p2, weight, 0.0)
            s3 += tl.where(x >= p3, weight, 0.0)
            s4 += tl.where(x >= p4, weight, 0.0)
            s5 += tl.where(x >= p5, weight, 0.0)
            s6 += tl.where(x >= p6, weight, 0.0)
            s7 += tl.where(x >= p7, weight, 0.0)
        reached = (tl.sum(s1, 0) >= target).to(tl.int32) + (tl.sum(s2, 0) >= target).to(tl.int32)
        reached += (tl.sum(s3, 0) >= target).to(tl.int32) + (tl.sum(s4, 0) >= target).to(tl.int32)
        reached += (tl.sum(s5, 0) >= target).to(tl.int32) + (tl.sum(s6, 0) >= target).to(tl.int32)
        reached += (tl.sum(s7, 0) >= target).to(tl.int32)
        high = tl.where(reached == 7, high, low + width * (reached + 1) // 8)
        low = low + width * reached // 8
    return tl.maximum(cut, _number(low, SHIFT))


@triton.jit
def _kept_sums(
    row, top, scale, cut,
    VOCAB: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Weight at or above `cut` of each split, float64 ``[PARTS]``."""
    part = tl.arange(0, PARTS)
    sums = tl.zeros([PARTS], tl.float64)
    for split in range(0, SPLITS):
        ids = split * SPLIT + tl.arange(0, SPLIT)
        x = tl.load(row + ids, mask=ids < VOCAB, other=float("-inf")).to(tl.float32)
        weight = tl.sum(tl.where(x >= cut, tl.exp2((x - top) * scale), 0.0), 0)
        sums = tl.where(part == split, weight.to(tl.float64), sums)
    return sums


@triton.jit
def _uniform(seed, child, position):
    """The row's number of `pegboard.sampling.random.uniforms`, float64; 32-bit words in uint64."""
    low = 0xFFFFFFFF
    seed = seed.to(tl.uint64)
    k0, k1 = seed & low, seed >> 32
    a, b = position.to(tl.uint64) & low, child.to(tl.uint64) & low
    c, d = a * 0, a * 0
    for step in tl.static_range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (second >> 32) ^ b ^ k0, second & low, (first >> 32) ^ d ^ k1, first & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    bits = (a << 20) | (b >> 12)
    return (bits.to(tl.int64).to(tl.float64) + 0.5) * (1.0 / 4503599627370496.0)


@triton.jit
def _invert(
    row, top, scale, cut, sums, u, fallback,
    VOCAB: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The first token at which the running sum of kept weights exceeds ``u * total``."""
    part = tl.arange(0, PARTS)
    running = tl.cumsum(sums, 0)
    target = u * tl.max(running, 0)
    last = tl.max(tl.where(sums > 0, part, 0), 0)
    split = tl.minimum(tl.sum((running <= target).to(tl.int32), 0), last)
    before = tl.sum(tl.where(part == split - 1, running, 0.0), 0)
    rest = (target - before).to(tl.float32)
    ids = split * SPLIT + tl.arange(0, SPLIT)
    x = tl.load(row + ids, mask=ids < VOCAB, other=float("-inf")).to(tl.float32)
    weight = tl.where(x >= cut, tl.exp2((x - top) * scale), 0.0)
    passed = (tl.cumsum(weight, 0) > rest) & (weight > 0)
    first = tl.min(tl.where(passed, ids, VOCAB), 0)
    # sums in another order may leave a rest that the split does not reach: its last token then
    final = tl.max(tl.where(weight > 0, ids, -1), 0)
    chosen = tl.where(first < VOCAB, first, final)
    return tl.where(chosen < 0, fallback, chosen)


@triton.jit(do_not_specialize=["plane"])
def _finish_kernel(
    logits, temperature, top_k, top_p, min_p, seed, child, position, scratch, out_ids, out_status,
    row_stride, plane, VOCAB: tl.constexpr, SPLITS: tl.constexpr, SHIFT: tl.constexpr,
    SPLIT: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * row_stride
    part = tl.arange(0, PARTS)
    have = part < SPLITS
    here = scratch + number * SPLITS + part
    peaks = tl.load(here, mask=have, other=float("-inf"))
    places = tl.load(here + plane, mask=have, other=0.0).to(tl.int32)
    odd = tl.max((peaks != peaks).to(tl.int32), 0)
    top = tl.max(peaks, 0)
    bad = (odd > 0) | (top == float("inf")) | (top == float("-inf"))
    chosen = tl.min(tl.where(have & (peaks == top), places, VOCAB - 1), 0)
    heat = tl.load(temperature + number).to(tl.float32)
    if (tl.load(temperature + number) > 0) & (bad == 0):
        scale = _scale(heat)
        share = tl.load(top_p + number)
        least = tl.load(min_p + number).to(tl.float32)
        keep = tl.load(top_k + number)
        limited = (keep > 0) & (keep < VOCAB)
        cut = tl.where(least > 0, top + tl.log(tl.maximum(least, 1e-37)) * heat, float("-inf"))
        weights = tl.load(here + 2 * plane, mask=have, other=0.0)
        rise = tl.exp2((tl.where(have, peaks, float("-inf")) - top) * scale)
        sums = weights.to(tl.float64) * rise.to(tl.float64)
        if limited:
            # as many tokens as there are splits are no less than the least peak
            floor = tl.min(tl.where(have, peaks, float("inf")), 0)
            floor = tl.where(keep <= SPLITS, floor, float("-inf"))
            target = keep.to(tl.float32)
            cut = _search(row, top, scale, cut, floor, target, VOCAB, True, SHIFT, TILE)
        if cut > float("-inf"):
            sums = _kept_sums(row, top, scale, cut, VOCAB, SPLITS, SPLIT, PARTS)
        if share < 1:
            total = tl.sum(sums, 0)
            # all tokens below an even part of what may go weigh less than that; half of it, since
            # sums are rounded
            part_of_rest = ((1 - share) * total / (2.0 * VOCAB)).to(tl.float32)
            floor = top + tl.log2(tl.maximum(part_of_rest, 1e-37)) / scale
            target = (total * share).to(tl.float32)
            cut = _search(row, top, scale, cut, floor, target, VOCAB, False, SHIFT, TILE)
            sums = _kept_sums(row, top, scale, cut, VOCAB, SPLITS, SPLIT, PARTS)
        u = _uniform(tl.load(seed + number), tl.load(child + number), tl.load(position + number))
        chosen = _invert(row, top, scale, cut, sums, u, chosen, VOCAB, SPLIT, PARTS)
    tl.store(out_ids + number, chosen.to(tl.int64))
    tl.store(out_status + number, bad.to(tl.int8))


def choose(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    child: torch.Tensor,
    position: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`pegboard.sampling.choose.choose`, with weights in float32."""
    count, vocab = logits.shape
    ids = torch.empty(count, dtype=torch.int64, device=logits.device)
    status = torch.empty(count, dtype=torch.int8, device=logits.device)
    if not count:
        return ids, status
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    split = max(triton.next_power_of_2(triton.cdiv(vocab, _SPLITS)), _LEAST_SPLIT)
    splits = triton.cdiv(vocab, split)
    scratch = torch.empty(3 * count * splits, dtype=torch.float32, device=logits.device)
    stride = logits.stride(0)
    _partial_kernel[(splits, count)](
        logits,
        temperature,
        scratch,
        stride,
        count * splits,
        VOCAB=vocab,
        SPLITS=splits,
        SPLIT=split,
        num_warps=4,
    )
    _finish_kernel[(count,)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        child,
        position,
        scratch,
        ids,
        status,
        stride,
        count * splits,
        VOCAB=vocab,
        SPLITS=splits,
        SHIFT=_SHIFTS[logits.dtype],
        SPLIT=split,
        PARTS=_SPLITS,
        TILE=_TILE,
        num_warps=16,
        maxnreg=64,
    )
    return ids, status
