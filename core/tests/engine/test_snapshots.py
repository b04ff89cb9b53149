"""States that readers get share lists with the growing request, and stay as they were."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from pegboard.api.params import Logprob, SamplingParams
from pegboard.api.step import TokenLogprobs
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.engine.inputs import TokenisedPrompt
from pegboard.engine.output_processor import OutputProcessor
from pegboard.engine.outputs import CompletionOutput
from pegboard.testing.checkpoints import ByteVocabulary


def grown() -> CompletionOutput:
    return CompletionOutput(
        0, "ab", [1, 2], -3.0, [{1: Logprob(-1.0, 1)}, {2: Logprob(-2.0, 2)}], num_shown=2
    )


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_snapshot_stays_as_it_is_while_the_sequence_grows(looked_at: bool) -> None:
    source = grown()
    state = source.snapshot()
    if looked_at:
        assert state.token_ids == [1, 2]
    source.token_ids += [3]
    assert source.logprobs is not None
    source.logprobs.append({3: Logprob(-3.0, 3)})
    source.text += "c"
    assert (state.token_ids, state.num_tokens, state.text) == ([1, 2], 2, "ab")
    assert state.ids_between(1, 5) == [2]
    assert state.logprobs is not None and len(state.logprobs) == 2
    state.token_ids.append(9)
    assert source.token_ids == [1, 2, 3], "a reader's list is its own"
    assert state.snapshot().text == "ab"


def test_copies_and_pickles_of_a_snapshot_are_plain_outputs() -> None:
    source = grown()
    for other in (copy.deepcopy(source.snapshot()), pickle.loads(pickle.dumps(source.snapshot()))):
        assert other == source


class Bytes:
    """A tokeniser of bytes that only makes detokenisers."""

    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id - 3])

    def detokenizer(self, *_: Any, **__: Any) -> Any:
        import codecs

        utf8 = codecs.getincrementaldecoder("utf-8")("replace")

        class Detokenizer:
            def push(self, ids: Any) -> str:
                return utf8.decode(bytes(i - 3 for i in ids))

            def finish(self) -> str:
                return utf8.decode(b"", final=True)

        return Detokenizer()


def read(params: SamplingParams) -> list[tuple[str, list[int], int, str | None]]:
    """States of an answer whose tokens come one by one."""
    processor = OutputProcessor(Bytes(), 1)  # type: ignore[arg-type]
    request = EngineRequest("e", [5], params, seed=0, max_tokens=20)
    processor.add("r", TokenisedPrompt((5,), None), params, [request])
    ids = ByteVocabulary().ids("a\U0001f600bc".encode())
    found = []
    for place, token in enumerate(ids):
        end = "length" if place == len(ids) - 1 else None
        scores = None
        if params.logprobs is not None:
            scores = [TokenLogprobs([token], [-1.0], 1)]
        output = EngineOutput("e", [token], end, logprobs=scores, time=1.0 + place)
        [state], _ = processor.process([output])
        answer = state.outputs[0]
        found.append((answer.text, list(answer.token_ids), answer.num_shown, answer.finish_reason))
        assert state.metrics.first_token_ts == 1.0 and state.metrics.last_token_ts == 1.0 + place
    return found


def test_the_quick_way_of_plain_outputs_gives_what_the_other_gives() -> None:
    plain = read(SamplingParams(max_tokens=20))
    assert plain[-1][0] == "a\U0001f600bc" and plain[-1][3] == "length"
    assert plain == read(SamplingParams(max_tokens=20, logprobs=0))
