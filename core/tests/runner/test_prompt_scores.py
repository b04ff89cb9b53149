from __future__ import annotations

import pytest
import torch

from pegboard.runner import prompt_logprobs

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
POISON = 30


def collect(driver, slot, chunks):
    """Scores by position over several steps; no position may come twice."""
    found = {}
    for count in chunks:
        result = driver.step({slot: count})
        chunk = result.prompt_logprobs.get(slot)
        if chunk is not None:
            for place, entry in enumerate(chunk.entries, chunk.first):
                assert place not in found
                found[place] = entry
    return found


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 7], [10, 1], [3, 3, 5]])
@pytest.mark.parametrize("tile", [1, 64, 1 << 20])
def test_every_prompt_token_but_the_first_is_scored_once_under_any_chunking(
    driver, monkeypatch, chunks, tile
):
    monkeypatch.setattr(prompt_logprobs, "_TILE_ELEMENTS", tile)
    driver.add(1, PROMPT, prompt_logprobs=2)
    found = collect(driver, 1, chunks)
    assert sorted(found) == list(range(1, len(PROMPT)))
    for place, entry in found.items():
        expected = torch.log_softmax(driver.model.expected(PROMPT[:place]), -1)
        top = expected.topk(2)
        assert entry.ids == [PROMPT[place], *top.indices.tolist()]
        assert entry.logprobs == pytest.approx(
            [float(expected[PROMPT[place]]), *top.values.tolist()]
        )
        assert entry.rank == 1 + int((expected > expected[PROMPT[place]]).sum())


def test_sampling_and_output_tokens_are_not_scored_as_prompt(driver):
    driver.add(1, PROMPT, prompt_logprobs=0)
    result = driver.step({1: 11})
    assert result.token_ids == [driver.model.greedy(PROMPT, 1)]
    assert len(result.prompt_logprobs[1].entries) == 10
    assert not driver.step({1: 1}).prompt_logprobs


def test_a_preempted_request_scores_its_prompt_again_but_never_its_output(driver):
    driver.add(1, PROMPT, prompt_logprobs=0)
    output = driver.generate(1, 3)
    driver.free(1)
    driver.add(0, PROMPT, output=output, prompt_logprobs=0)
    found = collect(driver, 0, [6, 8])
    assert sorted(found) == list(range(1, len(PROMPT)))


def test_only_rows_that_asked_are_scored_also_between_others(driver):
    driver.add(0, [8, 8, 8])
    driver.add(3, PROMPT, prompt_logprobs=1)
    driver.add(4, [9, 9])
    driver.step({0: 3})
    result = driver.step({0: 1, 3: 5, 4: 2})
    assert list(result.prompt_logprobs) == [3]
    assert result.prompt_logprobs[3].first == 1
    first = result.prompt_logprobs[3].entries[0]
    expected = torch.log_softmax(driver.model.expected(PROMPT[:1]), -1)
    assert first.logprobs[0] == pytest.approx(float(expected[PROMPT[1]]))


def test_a_prompt_of_one_token_has_no_scores(driver):
    driver.add(0, [5], prompt_logprobs=1)
    assert not driver.step({0: 1}).prompt_logprobs


def test_nan_in_the_middle_of_a_scored_prompt_fails_that_request_only(driver):
    driver.add(0, [1, POISON, 2, 3, 4], prompt_logprobs=1)
    driver.add(1, PROMPT, prompt_logprobs=1)
    result = driver.step({0: 3, 1: 11})
    assert list(result.failed) == [0]
    assert list(result.prompt_logprobs) == [1]
    assert result.token_ids == [driver.model.greedy(PROMPT, 1)]


def test_the_whole_vocabulary_can_be_asked_for(driver):
    driver.add(0, [4, 5], prompt_logprobs=-1)
    (entry,) = driver.step({0: 2}).prompt_logprobs[0].entries
    assert sorted(entry.ids[1:]) == list(range(31))
