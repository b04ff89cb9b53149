"""Small models, and an executor that does what the first token of a prompt says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.distributions import installed

MOODY = """
import os
import time

from pegboard.api.executor import Pending
from pegboard.api.hooks import hookimpl
from pegboard.api.executor_class import ExecutorClass
from pegboard.errors import ResourceError
from pegboard.testing.null_executor import NullExecutor

PEGBOARD_API = {"executor": 0}
FAIL, HANG, EXIT = 66, 77, 88


class Moody(NullExecutor):
    def __init__(self, ctx):
        super().__init__(0.002, token=70)
        self.seed = ctx.config.seed

    def load(self):
        if self.seed == FAIL:
            raise ResourceError("the device is too small")
        if self.seed == HANG:
            raise ZeroDivisionError("a slip")
        if self.seed == EXIT:
            os._exit(9)

    def execute(self, plan):
        for row in plan.new_rows:
            if row.prompt_ids[0] == FAIL:
                raise ZeroDivisionError("the device is on fire")
            if row.prompt_ids[0] == HANG:
                time.sleep(3600)
        return super().execute(plan)


@hookimpl
def pegboard_executors():
    return [ExecutorClass("moody", "moody_executor:Moody")]
"""


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with random weights."""
    return str(write_tiny_model(tmp_path_factory.mktemp("model"), seed=5))


@pytest.fixture(scope="module")
def moody(tmp_path_factory: pytest.TempPathFactory, tiny_path: str) -> Iterator[dict[str, Any]]:
    """Options of an engine that computes nothing, 2 ms a step.

    A request whose first token is 66 makes it fail, one whose is 77 makes it hang. As seeds, 66 and
    77 make its building fail, 88 ends its process.
    """
    folder = tmp_path_factory.mktemp("site")
    with installed(folder, "moody", "moody_executor", MOODY):
        yield {
            "model": tiny_path,
            "distributed_executor_backend": "moody",
            "max_model_len": 4096,
            "num_gpu_blocks_override": 4096,
            "max_num_seqs": 256,
        }
