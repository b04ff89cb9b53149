"""Packages that were made for vLLM, written to a folder that counts as installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pegboard.api.connector import KVConnector
from pegboard.testing.boards import Board, PluginRecord, board_of

ALIAS = """
def register():
    from vllm import ModelRegistry

    if "HouseForCausalLM" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(
            "HouseForCausalLM", "vllm.model_executor.models.llama:LlamaForCausalLM"
        )
"""

REGISTER_SHELF = """
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory


def register():
    if "shelf" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("shelf", "shelf_kv.connector", "ShelfConnector")
"""

SHELF = '''
"""Whole blocks of prompts, in a folder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger(__name__)


@dataclass
class ShelfMetadata(KVConnectorMetadata):
    load: list[tuple[str, str, int]] = field(default_factory=list)
    save: list[tuple[str, int]] = field(default_factory=list)


class ShelfConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        settings = dict(self._kv_transfer_config.kv_connector_extra_config)
        self.folder = Path(settings.pop("path"))
        self.later = settings.pop("later", False)
        if settings:
            raise ValueError(f"unknown: {', '.join(settings)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.block_size = vllm_config.cache_config.block_size
        self.starts, self.to_load, self.requests, self.tables = {}, {}, {}, {}
        self.caches, self.bad, self.arrived = {}, set(), set()

    def file(self, name):
        return self.folder / f"{name}.pt"

    # Scheduler side

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        first, found = num_computed_tokens // self.block_size, 0
        usable = (request.num_tokens - 1) // self.block_size
        for key in request.block_hashes[first:usable]:
            if not self.file(key.hex()).exists():
                break
            found += 1
        self.starts[request.request_id] = first
        return found * self.block_size, self.later and found > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.requests[request.request_id] = request
        if num_external_tokens > 0:
            ids = blocks.get_block_ids()[0]
            self.to_load[request.request_id] = (request, ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput):
        meta = ShelfMetadata()
        for request, ids, tokens in self.to_load.values():
            first = self.starts[request.request_id]
            for entry in range(first, first + tokens // self.block_size):
                key = request.block_hashes[entry].hex()
                meta.load.append((request.request_id, key, ids[entry]))
        self.to_load.clear()
        counts = scheduler_output.num_scheduled_tokens
        for new in scheduler_output.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids[0])
            self.save(meta, new.req_id, new.num_computed_tokens, counts[new.req_id])
        cached = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            if name in cached.resumed_req_ids:
                self.tables[name] = []
            if cached.new_block_ids[i] is not None:
                self.tables[name] += cached.new_block_ids[i][0]
            self.save(meta, name, cached.num_computed_tokens[i], counts[name])
        return meta

    def save(self, meta, name, start, count):
        hashes, size = self.requests[name].block_hashes, self.block_size
        last = min((start + count) // size, len(hashes))
        for entry in range(start // size, last):
            meta.save.append((hashes[entry].hex(), self.tables[name][entry]))

    def request_finished(self, request, block_ids):
        for known in (self.starts, self.to_load, self.requests, self.tables):
            known.pop(request.request_id, None)
        return False, None

    # Worker side

    def register_kv_caches(self, kv_caches):
        self.caches = kv_caches

    def start_load_kv(self, forward_context, **kwargs):
        for name, key, block in self._get_connector_metadata().load:
            self.arrived.add(name)
            try:
                saved = torch.load(self.file(key))
            except Exception:
                self.bad.add(block)
                continue
            for layer, cache in self.caches.items():
                cache[:, block] = saved[layer]

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        for key, block in self._get_connector_metadata().save:
            path = self.file(key)
            saved = torch.load(path) if path.exists() else {}
            torch.save({**saved, layer_name: kv_layer[:, block].clone()}, path)

    def wait_for_save(self):
        logger.info_once("saved")

    def get_finished(self, finished_req_ids):
        arrived, self.arrived = self.arrived, set()
        return None, (arrived or None) if self.later else None

    def get_block_ids_with_load_errors(self):
        bad, self.bad = self.bad, set()
        return bad
'''


class Packages:
    """Installs packages into a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        distribution: str,
        value: str,
        files: Mapping[str, str],
        requires: str = "vllm>=0.9",
    ) -> None:
        """`value` is what the entry point refers to; it is called as the package."""
        info = self.folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        headers = f"Name: {distribution}\nVersion: 1.2\nRequires-Dist: {requires}\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{headers}")
        name = value.partition(":")[0].partition(".")[0]
        (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {value}\n")
        for path, text in files.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))

    def add_shelf(self) -> None:
        """A KV connector."""
        files = {"shelf_kv/__init__.py": REGISTER_SHELF, "shelf_kv/connector.py": SHELF}
        self.add("acme-shelf", "shelf_kv:register", files)

    def add_house(self, source: str = ALIAS, **files: str) -> None:
        """A package of one module, and others by name."""
        more = {f"{name}.py": text for name, text in files.items()}
        self.add("acme-house", "house_plugin:register", {"house_plugin.py": source, **more})

    def board(self) -> Board:
        """Of these alone."""
        return board_of("legacy-vllm", "acme-*")

    def record(self) -> PluginRecord:
        """Of the package of one module."""
        (record,) = [r for r in self.board().plugins if r.id == "house_plugin"]
        return record


@contextmanager
def _site(folder: Path) -> Iterator[Packages]:
    folder.mkdir()
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield Packages(folder)
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None) or ""
            if origin.startswith(str(folder)):
                del sys.modules[name]


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Packages]:
    with _site(tmp_path / "site") as made:
        yield made


@pytest.fixture(scope="class")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KVConnector]:
    """The connector of a package that is installed as long as the tests of one class run."""
    with _site(tmp_path_factory.mktemp("class") / "site") as made:
        made.add_shelf()
        (found,) = made.board().registry("connector")
        yield found
