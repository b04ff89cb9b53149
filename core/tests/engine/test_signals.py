"""Signals at any line of the engine, and at any time: one that is caught does no harm."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.engine.interrupts import InterruptShield
from pegboard.engine.turns import Turns
from pegboard.testing.checkpoints import write_tiny_model

PROMPTS = [{"prompt_token_ids": [50 + n] * 20} for n in range(3)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
OURS = ("turns.py", "interrupts.py", "thread.py", "core.py", "llm.py", "llm_engine.py")


class OutOfTime(BaseException):
    """Somebody's own."""


RAISES = [KeyboardInterrupt, TimeoutError, OutOfTime]


@pytest.fixture(scope="module", params=[True, False], ids=["overlap", "synchronous"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_tiny_model(tmp_path_factory.mktemp("signals"), seed=5)
    options = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 64}
    with LLM(str(model), async_scheduling=request.param, **options) as made:
        yield made


@pytest.fixture
def handle() -> Iterator[Callable[[type[BaseException]], None]]:
    """Let SIGUSR1 raise something."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(error: type[BaseException]) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            raise error

        signal.signal(signal.SIGUSR1, handler)

    yield install
    signal.signal(signal.SIGUSR1, before)


def generate(llm: LLM) -> list[list[int]]:
    done = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [item.outputs[0].token_ids for item in done]


def in_a_thread(work: Callable[[], Any]) -> Any:
    """`work` done elsewhere, which shows whether a lock was left behind."""
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    assert told, "another thread waits for ever"
    return told[0]


class Trap:
    """Raises a signal at the n-th line that is run in the files `OURS`."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.lines = 0
        self.place = "nowhere"

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if Path(frame.f_code.co_filename).name not in OURS:
            return None
        if event in ("line", "return"):
            self.lines += 1
            if self.lines == self.line:
                self.place = f"{frame.f_code.co_name} line {frame.f_lineno}"
                signal.raise_signal(signal.SIGUSR1)
        return self


def trapped(trap: Trap, work: Callable[[], Any]) -> Any:
    sys.settrace(trap)
    try:
        return work()
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("error", RAISES, ids=lambda error: error.__name__)
def test_a_signal_at_any_line_is_raised_once_and_the_engine_goes_on(
    llm: LLM, handle: Callable[[type[BaseException]], None], error: type[BaseException]
) -> None:
    expected = generate(llm)
    count = Trap(-1)
    trapped(count, lambda: generate(llm))
    handle(error)
    rng, places = random.Random(error.__name__), Counter[str]()
    for _ in range(12):
        trap = Trap(rng.randrange(1, count.lines))
        with pytest.raises(error):
            trapped(trap, lambda trap=trap: generate(llm) and pytest.fail(f"lost: {trap.place}"))
        places[trap.place] += 1
        assert not llm.engine.has_unfinished_requests(), trap.place
        llm.engine.core.scheduler.check()
        assert in_a_thread(lambda: generate(llm)) == expected, trap.place
    assert generate(llm) == expected
    assert llm.reset_prefix_cache(), "a block is lost"
    assert len(places) > 6


def test_a_stream_that_is_interrupted_leaves_nothing_behind(
    llm: LLM, handle: Callable[[type[BaseException]], None]
) -> None:
    handle(TimeoutError)
    rng = random.Random(7)

    def read() -> None:
        for _ in llm.stream(PROMPTS[0], GREEDY):
            pass

    count = Trap(-1)
    trapped(count, read)
    for _ in range(8):
        trap = Trap(rng.randrange(1, count.lines))
        with pytest.raises(TimeoutError):
            trapped(trap, read)
        assert not llm.engine.has_unfinished_requests(), trap.place
        assert in_a_thread(lambda: generate(llm))


def test_a_fault_of_the_executor_is_no_signal(handle: Callable[..., None]) -> None:
    shield = InterruptShield()
    handle(TimeoutError)
    with shield:
        own = TimeoutError("the device does not answer")
        assert not shield.caused(own)
        with pytest.raises(TimeoutError) as caught, shield.opened:
            signal.raise_signal(signal.SIGUSR1)
        assert shield.caused(caught.value)
        assert shield.caused(KeyboardInterrupt())


# The shield and the turns alone


def test_handlers_wait_inside_run_in_the_open_part_and_are_put_back() -> None:
    shield, seen = InterruptShield(), []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    handler = signal.getsignal(signal.SIGUSR1)
    try:
        with shield, shield:
            signal.raise_signal(signal.SIGUSR1)
            assert seen == []
            with shield.opened:
                assert len(seen) == 1, "what waited comes first"
                signal.raise_signal(signal.SIGUSR1)
                assert len(seen) == 2
            signal.raise_signal(signal.SIGUSR1)
            assert len(seen) == 2
        assert len(seen) == 3
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_two_signals_that_waited_are_both_handled_though_the_first_raises() -> None:
    seen: list[int] = []

    def fail(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise TimeoutError

    numbers = [signal.SIGUSR1, signal.SIGUSR2]
    before = [signal.signal(number, fail) for number in numbers]

    def raise_all() -> None:
        with InterruptShield():
            for number in numbers:
                signal.raise_signal(number)

    try:
        with pytest.raises(TimeoutError):
            raise_all()
        assert seen == numbers
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


def test_a_handler_that_is_changed_inside_stays_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with InterruptShield():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_waits_for_a_turn_can_be_interrupted_and_does_not_get_it_afterwards() -> None:
    turns, inside, leave = Turns(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns:
            inside.set()
            leave.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(20)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), turns:
        pytest.fail("two are inside")
    leave.set()
    holder.join()

    def enter() -> bool:
        with turns:
            return True

    assert enter() and in_a_thread(enter)
