from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pegboard.api.step import BlockCopy, LateInputs, StepPlan

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
BLOCK, POISON, VOCAB = 4, 30, 31
settings_ = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 8, 100])
def test_any_chunking_of_the_prompt_gives_the_tokens_of_the_model_without_cache(driver, chunk):
    driver.add(2, PROMPT)
    assert driver.generate(2, 9, chunk) == driver.model.greedy(PROMPT, 9)


@settings_
@given(data=st.data())
def test_rows_in_one_batch_do_not_disturb_one_another_however_they_are_mixed(make_driver, data):
    driver = make_driver(groups=2)
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=14), min_size=2, max_size=5)
    )
    for slot, prompt in enumerate(prompts):
        driver.add(slot, prompt)
    found: dict[int, list[int]] = {slot: [] for slot in range(len(prompts))}
    while min(map(len, found.values())) < 4:
        slots = data.draw(st.lists(st.sampled_from(sorted(found)), min_size=1, unique=True))
        counts = {
            slot: data.draw(st.integers(1, driver.known[slot] - driver.computed[slot]))
            for slot in slots
            if len(found[slot]) < 6
        } or {min(found, key=lambda slot: len(found[slot])): 1}
        result = driver.step(counts)
        for slot, tokens in zip(result.slots, result.token_ids, strict=True):
            found[slot] += tokens
    for slot, prompt in enumerate(prompts):
        assert found[slot] == driver.model.greedy(prompt, len(found[slot]))


def test_a_result_names_the_rows_that_sampled_in_row_order(driver):
    driver.add(4, PROMPT)
    driver.add(1, [7])
    driver.add(3, [8, 9])
    result = driver.step({4: 3, 3: 2, 1: 1})
    assert result.slots == [3, 1]
    assert result.token_ids == [driver.model.greedy([8, 9], 1), driver.model.greedy([7], 1)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_resumed_request_goes_on_as_if_it_had_never_stopped(driver, temperature):
    params = {"temperature": temperature, "seed": 5, "presence_penalty": 0.5, "max_tokens": 50}
    driver.add(0, PROMPT, **params)
    whole = driver.generate(0, 12)
    driver.add(1, PROMPT, **params)
    before = driver.generate(1, 5)
    driver.free(1)
    driver.add(3, PROMPT, output=before, **params)
    assert before + driver.generate(3, 7, chunk=3) == whole


def test_a_slot_freed_and_given_away_in_one_plan_belongs_to_the_new_request(driver):
    driver.add(
        0, PROMPT, logprobs=2, repetition_penalty=1.5, prompt_logprobs=1, logit_bias={2: 9.0}
    )
    driver.generate(0, 3)
    driver.free(0)
    driver.add(0, [7, 7])
    result = driver.step({0: 2})
    assert result.token_ids == [driver.model.greedy([7, 7], 1)]
    assert not result.logprobs
    assert not result.prompt_logprobs
    driver.add(1, PROMPT)  # a longer row, so that the step's table is wider than the new request
    driver.step({0: 1, 1: 11})
    assert driver.generate(0, 5) == driver.model.greedy([7, 7], 7)[2:]


@pytest.mark.parametrize("shape", ["token-major", "block-last"])
@pytest.mark.parametrize("length", [5, 8, 9, 11])
def test_a_child_shares_full_blocks_and_copies_the_partial_one(
    make_driver, block_last, shape, length
):
    driver = make_driver(block_last, groups=2) if shape == "block-last" else make_driver()
    prompt = PROMPT[:length]
    driver.add(0, prompt, temperature=1.0, seed=4, child=0)
    driver.step({0: length})
    full, part = divmod(length - 1, BLOCK)
    shared = driver.held[0][:full]
    own = [driver.next_block] if part else []
    driver.next_block += 1
    driver.add(1, prompt, child=1, blocks=shared + own, computed=length - 1)
    if part:
        driver.copies = [
            BlockCopy(group, driver.held[0][full], own[0], part) for group in range(driver.groups)
        ]
    driver.step({0: 1, 1: 1})  # the parent writes on into the block that was copied
    assert driver.generate(1, 5) == driver.model.greedy(prompt, 6)[1:]


def test_a_copy_carries_only_the_tokens_asked_for(driver):
    driver.add(0, PROMPT)
    driver.step({0: 11})
    target = driver.next_block
    driver.next_block += 1
    driver.copies = [BlockCopy(0, driver.held[0][0], target, 2)]
    driver.step({0: 1})
    for tensors in driver.storage.values():
        assert torch.equal(tensors.data[:, target, :2], tensors.data[:, driver.held[0][0], :2])
        assert tensors.data[:, target, 2:].isnan().all()


def test_after_a_resync_only_the_new_rows_count(driver):
    driver.add(0, PROMPT, frequency_penalty=1.0, prompt_logprobs=1)
    driver.add(1, [5])
    driver.step({0: 11, 1: 1})
    output = driver.model.greedy([5], 1)
    driver.resync = True
    driver.add(1, [5], output=output, blocks=driver.held[1], computed=1)
    assert driver.generate(1, 4) == driver.model.greedy([5], 5)[1:]
    slots = driver.runner._slots
    assert not slots.prompts
    assert not any(blocks for slot, blocks in enumerate(slots.block_lists[0]) if slot != 1)


def test_sampled_tokens_reach_the_next_step_without_the_host(driver):
    driver.add(0, PROMPT, temperature=1.0, seed=3)
    driver.add(1, [2, 2])
    pending = [driver.start({0: 11, 1: 2})]
    pending += [driver.start({1: 1, 0: 1}) for _ in range(6)]
    rows = [dict(zip(r.slots, r.token_ids, strict=True)) for r in (p.result() for p in pending)]
    other = [token for row in rows for token in row[1]]
    assert other == driver.model.greedy([2, 2], 7)
    driver.free(0)
    driver.add(0, PROMPT, temperature=1.0, seed=3)
    assert driver.generate(0, 7) == [token for row in rows for token in row[0]]


def test_a_plan_without_rows_still_frees_and_copies(driver):
    driver.add(0, PROMPT)
    driver.step({0: 11})
    driver.copies = [BlockCopy(0, driver.held[0][0], 150, 4)]
    driver.free(0)
    forwards = driver.model.forwards
    result = driver.step({})
    assert result.slots == []
    assert result.token_ids == []
    assert driver.model.forwards == forwards
    for tensors in driver.storage.values():
        assert torch.equal(tensors.data[:, 150], tensors.data[:, driver.held[0][0]])


def test_a_dummy_step_runs_the_model_and_touches_the_null_block_only(driver):
    driver.add(0, PROMPT)
    first = driver.generate(0, 2)
    before = {key: tensors.data[:, 1:].clone() for key, tensors in driver.storage.items()}
    plan = StepPlan(driver.steps, [], [], [], [], [], dummy=True)
    driver.steps += 1
    forwards = driver.model.forwards
    pending = driver.runner.execute(plan)
    pending.sample(LateInputs(step_id=plan.step_id))
    assert pending.result().slots == []
    driver.runner.dummy([9, 1, 1, 4])
    driver.runner.dummy([9, 1, 4], [0, 16, 3])
    assert driver.model.forwards == forwards + 3
    for key, tensors in driver.storage.items():
        assert torch.equal(tensors.data[:, 1:].nan_to_num(-1), before[key].nan_to_num(-1))
    assert first + driver.generate(0, 3) == driver.model.greedy(PROMPT, 5)


def test_late_masks_bind_the_slots_they_name(driver):
    driver.add(0, PROMPT)
    driver.add(1, PROMPT)
    result = driver.step({0: 11, 1: 11}, masks={1: (1 << 17).to_bytes(4, "little")})
    assert result.token_ids == [driver.model.greedy(PROMPT, 1), [17]]
    # What follows the forced token is computed from it.
    assert driver.generate(1, 2) == driver.model.greedy([*PROMPT, 17], 2)


def test_a_row_of_nan_fails_alone(driver):
    driver.add(0, PROMPT, logprobs=1)
    driver.add(1, [1, POISON], logprobs=1, temperature=1.0)
    driver.add(2, [6, 6])
    result = driver.step({0: 11, 1: 2, 2: 2})
    assert list(result.failed) == [1]
    assert "finite" in result.failed[1]
    assert result.slots == [0, 1, 2]
    assert result.token_ids == [driver.model.greedy(PROMPT, 1), [], driver.model.greedy([6, 6], 1)]
    assert list(result.logprobs) == [0]
    driver.free(1)
    assert driver.generate(0, 4) == driver.model.greedy(PROMPT, 5)[1:]


def test_logprobs_come_for_the_requests_that_asked_and_as_many_as_they_asked(driver):
    driver.add(0, PROMPT, logprobs=2)
    driver.add(1, [6, 6])
    driver.add(2, [7], logprobs=0)
    result = driver.step({0: 11, 1: 2, 2: 1})
    assert {slot: len(e[0].ids) for slot, e in result.logprobs.items()} == {0: 3, 2: 1}
    (entry,) = result.logprobs[0]
    expected = torch.log_softmax(driver.model.expected(PROMPT), -1)
    assert entry.ids[0] == result.token_ids[0][0]
    assert entry.logprobs[:2] == [float(expected.max())] * 2
    assert entry.rank == 1


def test_end_ids_stay_banned_until_min_tokens_also_after_resumption(driver):
    params = {"min_tokens": 4, "logit_bias": {8: 100.0}, "end_ids": [8], "max_tokens": 9}
    driver.add(0, PROMPT, **params)
    first = driver.generate(0, 2)
    driver.free(0)
    driver.add(5, PROMPT, output=first, **params)
    tokens = first + driver.generate(5, 3)
    assert [token == 8 for token in tokens] == [False] * 4 + [True]


def test_a_row_may_fill_the_context_to_the_last_token(driver):
    prompt = [1] * 119
    driver.add(0, prompt, max_tokens=1)
    assert driver.generate(0, 1) == driver.model.greedy(prompt, 1)


def test_a_step_cannot_be_sampled_twice_or_with_inputs_of_another(driver):
    driver.add(0, PROMPT)
    pending = driver.start({0: 11})
    with pytest.raises(AssertionError, match="twice"):
        pending.sample(LateInputs(step_id=0))
    other = driver.runner.execute(driver.plan({0: 1}))
    with pytest.raises(AssertionError):
        other.sample(LateInputs(step_id=7))
