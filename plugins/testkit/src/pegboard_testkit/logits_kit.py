"""Conformance kit for the surface *logits*: logits processors.

A test file of a processor subclasses `LogitsKit`, names the descriptor, and gives arguments that it
takes and arguments that it must refuse::

    class TestMyProcessor(LogitsKit):
        processor = MY_PROCESSOR
        allowed = ({"pace": 1}, {"pace": 5})
        refused = ({"pace": 0}, {"pace": "fast"})

The processor is called as the sampler calls it, with random logits, and then in a whole engine on a
tiny model, on the CPU. The vocabulary is that of `pegboard.testing.checkpoints.ByteVocabulary`:
the token of a byte is that byte and 3, and 1 ends a text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard.api.logits import (
    LogitsCall,
    LogitsContext,
    LogitsProcessor,
    LogitsRequest,
    LogitsRow,
    Rows,
)
from pegboard.errors import RequestError
from pegboard.testing.boards import board_with, byte_tokenizer
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.applicable import leave_out
from pegboard_testkit.own_settings import OwnSettings

__all__ = ["LogitsKit"]

VOCABULARY = 259
ENDS = (1,)
SLOTS = 8
CPU = torch.device("cpu")


@attrs.frozen
class _Case:
    """A request in the middle of its answer."""

    slot: int
    arguments: Mapping[str, Any]
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]

    def row(self, known: int) -> LogitsRow:
        """As the processor is told of it, with the first `known` tokens of the output."""
        return LogitsRow(
            slot=self.slot,
            arguments=self.arguments,
            params=SamplingParams(temperature=1.0, extra_args=dict(self.arguments)),
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids[:known],
            seed=self.slot,
            child=0,
            end_ids=ENDS,
        )


class LogitsKit(OwnSettings):
    """Tests of a processor; subclass it in a test file under a name that begins with ``Test``.

    `processor` and `allowed` must be given; the other attributes may be changed.
    """

    processor: LogitsProcessor
    """The descriptor."""
    allowed: Sequence[Mapping[str, Any]]
    """Arguments of requests that use it, at least one, and together every argument."""
    refused: Sequence[Mapping[str, Any]] = ()
    """Arguments that its check must refuse."""
    changes = True
    """With each of `allowed`, a row of random logits is changed that has 7 tokens of output. False
    for a processor that may have nothing left to do by then."""
    tolerance = 1e-5
    """Largest difference of a logit between a row alone and in company."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        processor = getattr(cls, "processor", None)
        leave_out(
            cls,
            processor is not None and not processor.argmax_invariant,
            "test_the_likeliest_token_stays_if_that_is_declared",
        )

    def test_arguments_are_taken_and_refused(self) -> None:
        used = {key for arguments in self.allowed for key in arguments}
        assert used == set(self.processor.arguments), f"allowed tries {sorted(used)} only"
        assert self.processor.check is not None or not self.refused, "there is no check"
        for arguments in self.allowed:
            self._check(arguments)
        for arguments in self.refused:
            with pytest.raises(RequestError) as caught:
                self._check(arguments)
            assert any(key in str(caught.value) for key in arguments), (
                f"the refusal names no argument: {caught.value}"
            )

    def test_logits_keep_their_shape_and_some_token_is_left(self) -> None:
        for case in self._cases():
            given = self._logits(1)
            made = self._alone(case, given)
            assert made.shape == given.shape and made.dtype == torch.float32
            assert bool(made.amax().isfinite()), f"{case.arguments}: no token is left"
            assert not bool(made.isnan().any()), f"{case.arguments}: a logit is NaN"
            if self.changes:
                assert not torch.equal(made, given), f"{case.arguments} change nothing"

    def test_a_row_gets_the_same_alone_and_in_any_company(self) -> None:
        cases = self._cases()
        logits = self._logits(len(cases))
        alone = torch.cat([self._alone(case, logits[i : i + 1]) for i, case in enumerate(cases)])
        rows = self._built()
        for case in cases:
            rows.added(case.row(0))
        for seed in range(4):
            order = random.Random(seed).sample(range(len(cases)), max(1, len(cases) - seed))
            made = self._apply(rows, [cases[i] for i in order], logits[order])
            self._same(made, alone[order], f"rows in the order {order}")

    def test_a_preempted_row_goes_on_as_if_nothing_had_been(self) -> None:
        for case in self._cases():
            given, known = self._logits(1), len(case.output_ids)
            rows = self._built()
            rows.added(case.row(0))
            rows.removed(case.slot)
            moved = attrs.evolve(case, slot=(case.slot + 3) % SLOTS)
            rows.added(moved.row(known))
            made = self._apply(rows, [moved], given)
            self._same(made, self._alone(case, given), f"{case.arguments} after a preemption")

    def test_nothing_is_left_in_a_slot_that_another_request_gets(self) -> None:
        cases = self._cases()
        for first, second in zip(cases, [*cases[1:], cases[0]], strict=True):
            rows, given = self._built(), self._logits(1)
            rows.added(first.row(0))
            self._apply(rows, [first], given)
            rows.removed(first.slot)
            heir = attrs.evolve(second, slot=first.slot)
            rows.added(heir.row(0))
            made = self._apply(rows, [heir], given)
            self._same(made, self._alone(heir, given), "a slot that was used before")

    def test_the_likeliest_token_stays_if_that_is_declared(self) -> None:
        for seed in range(20):
            for case in self._cases():
                given = self._logits(1, seed)
                if seed % 3:  # a token that came before
                    given[0, case.output_ids[-1]] = given.max() + 1
                if seed % 3 == 2:  # and another that is as likely
                    given[0, 70] = given.max()
                made = self._alone(case, given)
                assert int(made.argmax()) == int(given.argmax()), f"{case.arguments}: it changed"

    def test_an_engine_gives_the_same_tokens_in_every_schedule(self, tmp_path: Path) -> None:
        model = write_tiny_model(tmp_path / "model", seed=5)
        prompts = [[n + 5, 40 + n, *range(60, 66 + 3 * n)] for n in range(len(self.allowed))]
        params = [
            SamplingParams(
                temperature=1.0, seed=n, max_tokens=12, ignore_eos=True, extra_args=dict(arguments)
            )
            for n, arguments in enumerate(self.allowed)
        ]
        with self.engine(model) as llm:
            together = self._tokens(llm, prompts, params)
            apart = [
                self._tokens(llm, [prompt], [param])[0]
                for prompt, param in zip(prompts, params, strict=True)
            ]
        assert together == apart, "batch mates change a request"
        with self.engine(model, async_scheduling=False, max_num_batched_tokens=8) as llm:
            assert self._tokens(llm, prompts, params) == together, "the schedule changes a request"

    # What the tests are made of

    @contextmanager
    def engine(self, model: Path, **options: Any) -> Iterator[LLM]:
        """An engine on a device that is none."""
        board = board_with("logits", self.processor, settings=self.settings)
        common = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 8}
        room = {"num_gpu_blocks_override": 64, "platform": "null"}
        with LLM(str(model), board=board, **{**common, **room, **options}) as llm:
            yield llm

    def _tokens(
        self, llm: LLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> list[list[int]]:
        outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
        for output in outputs:
            assert output.outputs[0].error is None, output.outputs[0].error
        return [output.outputs[0].token_ids for output in outputs]

    def _check(self, arguments: Mapping[str, Any]) -> None:
        if self.processor.check is not None:
            params = SamplingParams(extra_args=dict(arguments))
            settings = self.handed("logits", self.processor.name)["settings"]
            request = LogitsRequest(
                arguments, params, VOCABULARY, ENDS, settings, open_tokenizer=byte_tokenizer
            )
            self.processor.check.load()(request)

    def _built(self) -> Rows:
        own = self.handed("logits", self.processor.name)
        context = LogitsContext(VOCABULARY, CPU, SLOTS, ENDS, open_tokenizer=byte_tokenizer, **own)
        made: Rows = self.processor.build.load()(context)
        return made

    def _cases(self) -> list[_Case]:
        """Requests with all allowed arguments, each with a prompt and an output of its own."""
        found = []
        for number, arguments in enumerate(list(self.allowed)[:SLOTS]):
            draw = random.Random(number)
            prompt = tuple(draw.randrange(VOCABULARY) for _ in range(3 + number))
            output = tuple(draw.randrange(VOCABULARY) for _ in range(7))
            found.append(_Case((5 * number) % SLOTS, arguments, prompt, output))
        return found

    def _logits(self, rows: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3

    def _alone(self, case: _Case, logits: torch.Tensor) -> torch.Tensor:
        rows = self._built()
        rows.added(case.row(0))
        return self._apply(rows, [case], logits)

    def _apply(self, rows: Rows, cases: Sequence[_Case], logits: torch.Tensor) -> torch.Tensor:
        """What becomes of logits ``[len(cases), VOCABULARY]``, which are left as they are."""
        table = torch.full((SLOTS + 1, 64), -1, dtype=torch.int32)
        for case in cases:
            known = [*case.prompt_ids, *case.output_ids]
            table[case.slot, : len(known)] = torch.tensor(known, dtype=torch.int32)
        slots = tuple(case.slot for case in cases)
        made = rows.apply(
            LogitsCall(
                logits.clone(),
                slots,
                tuple(len(case.prompt_ids) + len(case.output_ids) for case in cases),
                tuple(case.output_ids for case in cases) if self.processor.needs_host_ids else None,
                table,
                torch.tensor(slots),
            )
        )
        return made.clone()

    def _same(self, made: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        assert torch.allclose(made, wanted, rtol=0, atol=self.tolerance), f"{what}: logits differ"
