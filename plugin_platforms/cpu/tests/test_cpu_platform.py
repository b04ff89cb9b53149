"""The CPU platform: what it says of the host, and its ops against the plain ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from pegboard.api.platform import Communication, DeviceRuntime
from pegboard.errors import ConfigError
from pegboard.nn import OPS, OpTable
from pegboard_platform_cpu import cgroup, pegboard_ops, pegboard_platforms, runtime
from pegboard_platform_cpu.runtime import CpuMemory, CpuRuntime, probe

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return root


V2 = {
    "proc/self/cgroup": "0::/outer/inner",
    "sys/fs/cgroup/outer/memory.max": str(4 * GIB),
    "sys/fs/cgroup/outer/memory.current": str(3 * GIB),
    "sys/fs/cgroup/outer/memory.stat": f"anon {GIB}\ninactive_file {GIB // 2}",
    "sys/fs/cgroup/outer/inner/memory.max": "max",
    "sys/fs/cgroup/outer/inner/memory.current": str(GIB),
    "sys/fs/cgroup/outer/inner/cpu.max": "150000 100000",
    "sys/fs/cgroup/outer/cpu.max": "max 100000",
}
V1 = {
    "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n0::/",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(2 * GIB),
    "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(GIB),
    "sys/fs/cgroup/memory/box/memory.stat": f"total_inactive_file {GIB // 4}",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": str(9223372036854771712),
    "sys/fs/cgroup/memory/memory.usage_in_bytes": str(5 * GIB),
    "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "50000",
    "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
}


def test_the_tightest_limit_above_the_process_counts_less_what_can_be_reclaimed(
    tmp_path: Path,
) -> None:
    found = cgroup.memory_limit(write(tmp_path, V2))
    assert found == cgroup.MemoryLimit(4 * GIB, 3 * GIB - GIB // 2)
    assert cgroup.cpu_quota(tmp_path) == 1.5


def test_version_one_groups_are_read_and_their_unlimited_number_is_none(tmp_path: Path) -> None:
    found = cgroup.memory_limit(write(tmp_path, V1))
    assert found == cgroup.MemoryLimit(2 * GIB, GIB - GIB // 4)
    assert cgroup.cpu_quota(tmp_path) == 0.5


def test_a_container_that_sees_only_its_own_top_folder_is_limited_by_it(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/../hidden",
        "sys/fs/cgroup/memory.max": str(GIB),
        "sys/fs/cgroup/memory.current": "4096",
        "sys/fs/cgroup/cpu.max": "200000 100000",
    }
    assert cgroup.memory_limit(write(tmp_path, files)) == cgroup.MemoryLimit(GIB, 4096)
    assert cgroup.cpu_quota(tmp_path) == 2.0


def test_no_groups_and_unreadable_files_mean_no_limit(tmp_path: Path) -> None:
    assert cgroup.memory_limit(tmp_path) is None
    assert cgroup.cpu_quota(tmp_path) is None
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "nonsense"})
    assert cgroup.memory_limit(tmp_path) is None


def test_memory_is_what_host_and_group_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = CpuRuntime().memory
    host = psutil.virtual_memory().total
    monkeypatch.setattr(runtime, "memory_limit", lambda: None)
    assert memory.total_bytes() == host
    assert 0 < memory.free_bytes() <= host
    monkeypatch.setattr(runtime, "memory_limit", lambda: cgroup.MemoryLimit(GIB, GIB - 4096))
    assert memory.total_bytes() == GIB
    assert memory.free_bytes() == 4096
    assert memory.cache_limit() == GIB // 4
    monkeypatch.setattr(runtime, "memory_limit", lambda: cgroup.MemoryLimit(GIB, 2 * GIB))
    assert memory.free_bytes() == 0


def test_the_cache_takes_at_most_four_gigabytes_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = CpuRuntime().memory
    monkeypatch.setattr(type(memory), "total_bytes", lambda self: 1024 * GIB)
    assert memory.cache_limit() == 4 * GIB


def test_cores_are_bounded_by_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for quota, cores in ((None, 8), (2.5, 3), (0.2, 1), (64.0, 8)):
        monkeypatch.setattr(runtime, "cpu_quota", lambda quota=quota: quota)
        assert runtime.usable_cores() == cores


def test_opening_the_host_leaves_no_more_threads_than_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "usable_cores", lambda: 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        CpuRuntime()
        assert torch.get_num_threads() == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        CpuRuntime()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_runtime_keeps_the_contract() -> None:
    (platform,) = pegboard_platforms()
    opened: DeviceRuntime = platform.runtime.load()(0)
    assert platform.probe.load() is probe
    assert probe().present
    assert opened.device.torch_device() == torch.device("cpu")
    assert set(opened.device.dtypes()) == {"float32", "bfloat16", "float16"}
    opened.execution.synchronize()
    facts = opened.facts()
    assert facts["platform"] == "cpu"
    assert facts["threads"] >= 1
    assert isinstance(facts["isa"], tuple)


def test_there_is_one_host_whatever_the_index() -> None:
    assert CpuRuntime(1).device.torch_device() == torch.device("cpu")
    with pytest.raises(ConfigError, match="index -1"):
        CpuRuntime(-1)


def test_a_rank_that_is_alone_reduces_and_gathers_and_has_its_share_of_memory(
    tmp_path: Path,
) -> None:
    opened = CpuRuntime()
    whole = opened.memory.total_bytes()
    comm: Communication = opened.communicate(0, 1, str(tmp_path / "meeting"))
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(comm.all_reduce(x.clone().T), x.T)
    assert torch.equal(comm.all_gather(x, 1), x)
    assert torch.equal(comm.all_gather(x[:0], 1), x[:0])
    comm.close()
    assert CpuMemory(3).total_bytes() == whole // 3
    assert CpuMemory(3).cache_limit() <= whole // 12


def test_bfloat16_is_preferred_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuRuntime().device
    for flag, first in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(runtime, "capabilities", lambda flag=flag: {"avx512_bf16": flag})
        assert device.dtypes()[0] == first


def test_a_missing_torch_is_the_reason_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    answer = probe()
    assert not answer.present
    assert answer.reason == "torch is not installed"


def test_hooks_and_probe_import_no_torch() -> None:
    code = (
        "import sys, pegboard_platform_cpu as p; p.pegboard_ops(); "
        "p.pegboard_platforms()[0].probe.load()(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def ops_table(dtype: str) -> OpTable:
    return OpTable.choose(pegboard_ops(), platform="cpu", dtype=dtype)


def agrees(op: str, dtype: str, found: torch.Tensor, plain: torch.Tensor) -> None:
    assert found.dtype == plain.dtype
    assert found.shape == plain.shape
    found, plain = found.double(), plain.double()
    assert ((found - plain).abs() <= OPS[op].tolerance[dtype] * (1 + plain.abs())).all(), op


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [0, 1, 3, 130])
def test_ops_agree_with_the_plain_versions(dtype: str, rows: int) -> None:
    table, kind = ops_table(dtype), getattr(torch, dtype)
    assert table.choices()["rope"] == "cpu.rope"
    x, residual = torch.randn(rows, 48).to(kind), torch.randn(rows, 48).to(kind)
    weight = torch.randn(48).to(kind)
    agrees(
        "rms_norm",
        dtype,
        table["rms_norm"](x, weight, 1e-5),
        OPS["rms_norm"].plain(x, weight, 1e-5),
    )
    kept = residual.clone()
    wanted = OPS["add_rms_norm"].plain(x, residual, weight, 1e-5)
    for found, plain in zip(
        table["add_rms_norm"](x.clone(), residual, weight, 1e-5), wanted, strict=True
    ):
        agrees("add_rms_norm", dtype, found, plain)
    assert torch.equal(residual, kept)
    agrees("silu_mul", dtype, table["silu_mul"](x.clone()), OPS["silu_mul"].plain(x))
    angles = torch.rand(50, 8) * 6
    positions = torch.randint(0, 50, (rows,))
    packed = torch.randn(rows, 5, 24).to(kind)
    for rotated in (8, 4):
        part = angles[:, :rotated]
        lookup = torch.cat((part.cos(), part.sin()), -1)
        heads = packed[:, 1:4]
        found = table["rope"](heads.clone(), positions, lookup)
        agrees("rope", dtype, found, OPS["rope"].plain(heads, positions, lookup))


def test_float32_rows_take_a_narrower_weight() -> None:
    x, weight = torch.randn(3, 48), torch.randn(48).bfloat16()
    found = ops_table("bfloat16")["rms_norm"](x, weight, 1e-5)
    agrees("rms_norm", "float32", found, OPS["rms_norm"].plain(x, weight, 1e-5))


def test_a_row_does_not_depend_on_its_mates() -> None:
    table = ops_table("float32")
    x, residual, weight = torch.randn(65, 576), torch.randn(65, 576), torch.randn(576)
    lookup = torch.randn(70, 16)
    heads = torch.randn(65, 3, 16)
    together = (
        table["rms_norm"](x, weight, 1e-5),
        table["add_rms_norm"](x.clone(), residual, weight, 1e-5)[0],
        table["rope"](heads.clone(), torch.arange(65), lookup),
        table["silu_mul"](x.clone()),
    )
    for row in (0, 31, 64):
        one = slice(row, row + 1)
        alone = (
            table["rms_norm"](x[one], weight, 1e-5),
            table["add_rms_norm"](x[one].clone(), residual[one], weight, 1e-5)[0],
            table["rope"](heads[one].clone(), torch.arange(65)[one], lookup),
            table["silu_mul"](x[one].clone()),
        )
        for some, whole in zip(alone, together, strict=True):
            assert torch.equal(some[0], whole[row])
