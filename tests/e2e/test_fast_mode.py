"""The demo model's fast mode (bfloat16) against its exact one (float32), over plain prose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard_quant_gguf.packed import packed_width

KL_LIMIT = 0.01
"""Nats per token, on average."""
AGREEMENT = 0.97
"""Share of positions with the same likeliest token."""
FEW_ROWS = 16
"""Rows of a step that the kernel of decode steps computes."""
PASSAGE_AGREEMENT = 0.95
"""The same for a single passage, over which a share of 0.97 scatters by 0.01."""
PROSE = Path(__file__).with_name("prose.txt")

Score = Callable[[LLM, str], torch.Tensor]


@attrs.frozen
class Distance:
    """How far two models are from each other; sums over passages with `add`."""

    positions: int = 0
    divergence: float = 0.0
    """Sum over positions of KL(exact ‖ fast) = Σ p (log p - log q), in nats."""
    agreed: int = 0

    def add(self, other: Distance) -> Distance:
        return Distance(
            self.positions + other.positions,
            self.divergence + other.divergence,
            self.agreed + other.agreed,
        )

    def check(self, agreement: float = AGREEMENT) -> None:
        assert self.positions > 0
        assert 0 < self.divergence / self.positions <= KL_LIMIT, self
        assert self.agreed / self.positions >= agreement, self


def distance(exact: torch.Tensor, fast: torch.Tensor) -> Distance:
    """Of two sets of log-probabilities ``[positions, vocab]``."""
    assert exact.shape == fast.shape
    divergence = (exact.exp() * (exact - fast)).sum(-1, dtype=torch.float64).sum()
    agreed = (exact.argmax(-1) == fast.argmax(-1)).sum()
    return Distance(len(exact), float(divergence), int(agreed))


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch) -> Score:
    """Gives the log-probabilities ``[tokens - 1, vocab]`` of a text's tokens.

    They are copied where the runner makes them: as dictionaries they would take minutes.
    """
    from pegboard.runner import prompt_logprobs

    made: list[torch.Tensor] = []
    original = prompt_logprobs.raw_logprobs

    def copying(logits: torch.Tensor) -> torch.Tensor:
        made.append(original(logits))
        return made[-1]

    monkeypatch.setattr(prompt_logprobs, "raw_logprobs", copying)

    def run(llm: LLM, text: str) -> torch.Tensor:
        made.clear()
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        (output,) = llm.generate(text, params, use_tqdm=False)
        rows, ids = torch.cat(made), output.prompt_token_ids
        assert rows.shape == (len(ids) - 1, llm.model.facts.vocab_size)
        assert output.prompt_logprobs is not None
        entries = zip(output.prompt_logprobs[1:], rows, ids[1:], strict=True)
        assert all(entry and entry[token].logprob == row[token] for entry, row, token in entries)
        return rows

    return run


def opened(path: Path, dtype: str, **more: int) -> Iterator[LLM]:
    options = {"max_model_len": 512, "max_num_seqs": 4, "enable_prefix_caching": False, **more}
    with LLM(str(path), dtype=dtype, **options) as llm:
        assert llm.model.dtype == dtype
        yield llm


@pytest.fixture(scope="module")
def exact(smollm2_path: Path) -> Iterator[LLM]:
    yield from opened(smollm2_path, "float32")


@pytest.fixture(scope="module")
def fast(smollm2_path: Path) -> Iterator[LLM]:
    yield from opened(smollm2_path, "bfloat16")


@pytest.fixture(scope="module")
def few_at_once(smollm2_path: Path) -> Iterator[LLM]:
    """The fast mode, with steps as small as those that decode."""
    yield from opened(smollm2_path, "bfloat16", max_num_batched_tokens=FEW_ROWS)


@pytest.fixture
def decode_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each product that the kernel of decode steps made."""
    rows, kernel = [], torch._weight_int4pack_mm_for_cpu

    def noted(x: torch.Tensor, *others: object) -> torch.Tensor:
        rows.append(len(x))
        return kernel(x, *others)

    monkeypatch.setattr(torch, "_weight_int4pack_mm_for_cpu", noted)
    return rows


def passages() -> list[str]:
    return PROSE.read_text().strip().split("\n\n")


@pytest.mark.accept
def test_the_fast_mode_stays_close_on_one_passage(exact: LLM, fast: LLM, score: Score) -> None:
    text = passages()[0]
    found = distance(score(exact, text), score(fast, text))
    assert found.positions >= 200
    found.check(PASSAGE_AGREEMENT)


@pytest.mark.accept
@pytest.mark.timeout(1800)
def test_the_fast_mode_stays_close_over_two_thousand_tokens(
    exact: LLM, fast: LLM, score: Score
) -> None:
    found = Distance()
    for text in passages():
        found = found.add(distance(score(exact, text), score(fast, text)))
    assert found.positions >= 2000
    found.check()
    mean, share = found.divergence / found.positions, found.agreed / found.positions
    print(f"{found.positions} tokens: KL {mean:.5f} nats, top-1 agreement {share:.2%}")


@pytest.mark.accept
@pytest.mark.timeout(1800)
def test_the_kernel_of_decode_steps_stays_close_over_a_thousand_tokens(
    exact: LLM, few_at_once: LLM, score: Score, decode_rows: list[int]
) -> None:
    found = Distance()
    for text in passages()[:5]:
        found = found.add(distance(score(exact, text), score(few_at_once, text)))
    assert found.positions >= 1000
    found.check()
    if packed_width() is not None:  # else no such kernel is used on this processor
        assert max(decode_rows) == FEW_ROWS
        assert sum(decode_rows) >= found.positions
    mean, share = found.divergence / found.positions, found.agreed / found.positions
    print(f"{found.positions} tokens: KL {mean:.5f} nats, top-1 agreement {share:.2%}")


def test_the_kernel_of_decode_steps_stays_close_on_a_few_tokens(
    exact: LLM, few_at_once: LLM, score: Score, decode_rows: list[int]
) -> None:
    text = " ".join(passages()[0].split()[:60])
    found = distance(score(exact, text), score(few_at_once, text))
    assert found.positions >= 60
    found.check(PASSAGE_AGREEMENT)
    assert decode_rows or packed_width() is None


def test_the_distance_notices_another_distribution() -> None:
    rows = torch.log_softmax(torch.randn(50, 30, generator=torch.Generator().manual_seed(1)), -1)
    assert distance(rows, rows) == Distance(50, 0.0, 50)
    other = distance(rows, rows.roll(1, 0))
    with pytest.raises(AssertionError):
        other.check(PASSAGE_AGREEMENT)
