from __future__ import annotations

import builtins
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file

from pegboard.errors import CheckpointError, UnsupportedError
from pegboard.weights.safetensors_source import open_directory, probe

INDEX = "model.safetensors.index.json"


def shard(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def edit_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_tensors_read_as_the_reference_library_wrote_them(tmp_path: Path) -> None:
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
    tensors = {str(d): torch.randint(0, 100, (5, 3)).to(d) for d in dtypes}
    tensors |= {"bool": torch.tensor([True, False]), "empty": torch.zeros(0, 4)}
    tensors |= {"scalar": torch.tensor(2.5), "f8": torch.ones(3).to(torch.float8_e4m3fn)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architectures": ["A"]}')
    checkpoint = open_directory(str(tmp_path))
    assert set(checkpoint.tensors) == set(tensors)
    for name, tensor in tensors.items():
        read = checkpoint.tensors[name].read()
        assert read.dtype == tensor.dtype
        assert read.shape == tensor.shape
        assert torch.equal(read.double(), tensor.double())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
def test_a_file_that_may_not_be_read_is_named(
    name: str, tmp_path: Path, write_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, {"a": torch.ones(7)})
    (folder / "generation_config.json").write_text("{}")
    real = io.open

    def refuse(file: Any, *more: Any, **named: Any) -> Any:
        if str(file).endswith(f"/{name}"):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *more, **named)

    monkeypatch.setattr(io, "open", refuse)
    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied") as caught:
        open_directory(str(folder))
    assert str(folder / name) in str(caught.value)


def test_a_folder_whose_files_may_not_be_looked_at_is_named(
    tmp_path: Path, write_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, {"a": torch.ones(7)})

    def refuse(path: Path, **_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied") as caught:
        open_directory(str(folder))
    assert str(folder) in str(caught.value)


def test_rows_are_read_on_their_own(tmp_path: Path, write_checkpoint: Any) -> None:
    data = torch.randn(10, 2, 3)
    tensor = open_directory(
        str(write_checkpoint(tmp_path, {"a": torch.ones(7), "x": data}))
    ).tensors["x"]
    for start, stop in ((0, 10), (3, 4), (4, 10), (5, 5), (10, 10)):
        assert torch.equal(tensor.read(start, stop), data[start:stop])
    assert torch.equal(tensor.read(2), data[2:])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11), (11, None)])
def test_rows_that_are_not_there_are_refused(
    start: int, stop: int | None, tmp_path: Path, write_checkpoint: Any
) -> None:
    tensor = open_directory(str(write_checkpoint(tmp_path, {"x": torch.zeros(10, 2)}))).tensors["x"]
    with pytest.raises(IndexError, match="'x', which has 10"):
        tensor.read(start, stop)


def test_what_is_read_does_not_stay_in_memory(tmp_path: Path, write_checkpoint: Any) -> None:
    folder = write_checkpoint(tmp_path, {"x": torch.zeros(64, 1 << 18)})
    tensor = open_directory(str(folder)).tensors["x"]
    before = psutil.Process().memory_info().rss
    for row in range(64):
        assert tensor.read(row, row + 1).sum() == 0
    assert psutil.Process().memory_info().rss - before < 16 * 1024 * 1024


def test_an_opened_checkpoint_can_be_sent_to_another_process(
    tmp_path: Path, write_checkpoint: Any
) -> None:
    folder = write_checkpoint(tmp_path, {"x": torch.arange(3.0)})
    there = pickle.loads(pickle.dumps(open_directory(str(folder))))
    assert torch.equal(there.tensors["x"].read(), torch.arange(3.0))


def test_a_file_that_shrinks_after_opening_is_noticed(
    tmp_path: Path, write_checkpoint: Any
) -> None:
    tensor = open_directory(str(write_checkpoint(tmp_path, {"x": torch.zeros(100)}))).tensors["x"]
    data = Path(tensor.file).read_bytes()
    Path(tensor.file).write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match="changed while tensor 'x'"):
        tensor.read()
    Path(tensor.file).unlink()
    with pytest.raises(CheckpointError, match="tensor 'x'"):
        tensor.read()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_are_joined(count: int, tmp_path: Path, write_shards: Any) -> None:
    shards = [{f"t{n}": torch.full((2,), float(n))} for n in range(count)]
    tensors = open_directory(str(write_shards(tmp_path, *shards))).tensors
    assert {name: t.read().tolist() for name, t in tensors.items()} == {
        f"t{n}": [n, n] for n in range(count)
    }


def test_o34d_a_shard_that_is_not_there_is_named_with_its_tensors(
    tmp_path: Path, write_shards: Any
) -> None:
    folder = write_shards(
        tmp_path, {"a": torch.ones(1)}, {f"b{n}": torch.ones(1) for n in range(9)}
    )
    (folder / shard(2, 2)).unlink()
    with pytest.raises(
        CheckpointError, match=r"00002-of-00002.*missing.*9 tensors \(b0, .*4 more\)"
    ):
        open_directory(str(folder))


def test_o34e_a_shard_cut_by_100_bytes_is_named_with_the_tensor(
    tmp_path: Path, write_shards: Any
) -> None:
    folder = write_shards(tmp_path, {"a": torch.ones(100)}, {"b": torch.ones(100)})
    data = (folder / shard(2, 2)).read_bytes()
    (folder / shard(2, 2)).write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match=r"00002-of-00002.*'b'.*cut short"):
        open_directory(str(folder))


def test_o34g_a_stray_file_with_the_same_names_is_ignored(
    tmp_path: Path, write_shards: Any, write_file: Any
) -> None:
    folder = write_shards(tmp_path, {"a": torch.ones(1)})
    write_file(folder / "model-stray.safetensors", {"a": torch.zeros(1)})
    write_file(folder / "consolidated.safetensors", {"a": torch.zeros(1)}, length=2**60)
    write_file(folder / "model.safetensors", {"a": torch.zeros(1)})
    assert open_directory(str(folder)).tensors["a"].read() == 1


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path, write_shards: Any) -> None:
    folder = write_shards(tmp_path, {"a": torch.ones(1)})
    edit_index(folder, lambda names: names.update({"ghost": shard(1, 1)}))
    with pytest.raises(CheckpointError, match="'ghost' is missing"):
        open_directory(str(folder))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, write_shards: Any) -> None:
    folder = write_shards(tmp_path, {"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)})
    edit_index(folder, lambda names: names.update({"a": shard(1, 2)}))
    with pytest.raises(CheckpointError, match=r"'a' is in both .*00001.* and .*00002"):
        open_directory(str(folder))


def test_a_tensor_that_the_index_does_not_name_is_not_lost(
    tmp_path: Path, write_shards: Any
) -> None:
    folder = write_shards(tmp_path, {"a": torch.ones(1), "b": torch.ones(1)})
    edit_index(folder, lambda names: names.pop("b"))
    assert set(open_directory(str(folder)).tensors) == {"a", "b"}


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "sub/a.safetensors", 5, None, "pytorch_model.bin"],
)
def test_an_index_may_name_safetensors_files_beside_it_only(
    name: Any, tmp_path: Path, write_shards: Any
) -> None:
    folder = write_shards(tmp_path, {"a": torch.ones(1)})
    edit_index(folder, lambda names: names.update({"a": name}))
    with pytest.raises(CheckpointError, match=r"index.json: tensor 'a' is said to be in"):
        open_directory(str(folder))


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": []}', '{"weight_map": {}}', "{}"])
def test_a_malformed_index_is_refused(content: str, tmp_path: Path, write_shards: Any) -> None:
    folder = write_shards(tmp_path, {"a": torch.ones(1)})
    (folder / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        open_directory(str(folder))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "missing"),
        ("{", "not valid JSON"),
        ("[1]", "JSON object is expected"),
        ("{}", "architectures=None"),
        ('{"architectures": []}', "architectures"),
        ('{"architectures": [5]}', "architectures"),
        ('{"architectures": "LlamaForCausalLM"}', "architectures"),
    ],
)
def test_a_missing_or_malformed_configuration_is_refused(
    content: str | None, words: str, tmp_path: Path, write_checkpoint: Any
) -> None:
    folder = write_checkpoint(tmp_path, {"a": torch.ones(1)})
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_directory(str(folder))
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickle_checkpoints_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps({"a": 1}))
    for path in (tmp_path, tmp_path / name):
        assert probe(str(path))
        with pytest.raises(CheckpointError, match="pickle checkpoints are refused") as caught:
            open_directory(str(path))
        assert name in str(caught.value)


def test_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path, write_checkpoint: Any) -> None:
    folder = write_checkpoint(tmp_path, {"a": torch.ones(1)})
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    assert set(open_directory(str(folder)).tensors) == {"a"}


def test_weights_in_another_form_are_named(tmp_path: Path, write_file: Any) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["A"]}')
    (tmp_path / "model.Q4_1.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"model\.Q4_1\.gguf, give that file's path"):
        open_directory(str(tmp_path))
    write_file(tmp_path / "consolidated.safetensors", {"a": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"consolidated\.safetensors but neither"):
        open_directory(str(tmp_path))


def test_a_single_safetensors_file_asks_for_its_directory(tmp_path: Path, write_file: Any) -> None:
    path = write_file(tmp_path / "model.safetensors", {"a": torch.ones(1)})
    assert probe(str(path))
    with pytest.raises(CheckpointError, match="give the directory"):
        open_directory(str(path))


def test_the_probe_says_no_to_what_belongs_to_others(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    (tmp_path / "y.bin").write_bytes(b"GGUF\x03")
    assert not probe(str(tmp_path / "x.gguf"))
    assert not probe(str(tmp_path / "y.bin"))
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "x.gguf").write_bytes(b"GGUF")
    (tmp_path / "only" / "imatrix.bin").write_bytes(b"x")
    assert not probe(str(tmp_path / "only"))


def test_generation_defaults_templates_and_tokeniser_come_along(
    tmp_path: Path, write_checkpoint: Any
) -> None:
    folder = write_checkpoint(
        tmp_path, {"a": torch.ones(1)}, config={"quantization_config": {"quant_method": "x"}}
    )
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    checkpoint = open_directory(str(folder))
    assert checkpoint.generation_defaults == {"temperature": 0.5}
    assert checkpoint.chat_templates == {"default": "{{ messages }}"}
    assert checkpoint.config["quantization_config"] == {"quant_method": "x"}
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json"):
        checkpoint.tokenizer()
    (folder / "generation_config.json").write_text("nonsense")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        open_directory(str(folder))
