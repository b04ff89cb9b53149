"""The command line and the configuration file of ``pegboard serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard import EngineConfig
from pegboard.errors import ConfigError
from pegboard_server_openai.command_line import parse
from pegboard_server_openai.flags import FLAGS, GROUPS, read_size
from pegboard_server_openai.options import AppOptions, ServerOptions
from pegboard_server_openai.refused import IDLE, REFUSED, RENAMED


def settings(*words: str, **environ: str) -> Any:
    return parse(["m", *words], environ)


def test_every_setting_has_a_flag_and_every_flag_a_setting() -> None:
    parts: dict[str, set[str]] = {"engine": set(), "app": set(), "server": set()}
    for flag in FLAGS:
        assert flag.group in GROUPS
        if flag.group != "Other names":
            parts[flag.part].add(flag.field)
    own = {"model"}, {"root"}, set()
    for kind, without, part in zip(
        (EngineConfig, AppOptions, ServerOptions), own, parts, strict=True
    ):
        assert {field.name for field in attrs.fields(kind)} - without == parts[part], part


def test_no_name_is_both_taken_and_refused() -> None:
    names = [flag.name for flag in FLAGS]
    taken = [*names, *RENAMED, *IDLE]
    assert len(set(taken)) == len(taken)
    assert not set(taken) & set(REFUSED)
    assert set(RENAMED.values()) <= {*names, "model"}
    assert len(REFUSED) >= 60


def test_flags_reach_what_they_set() -> None:
    found = settings(
        "--max-model-len", "8k", "--max_num_seqs=1K", "--max-num-batched-tokens", "0.5m",
        "-tp", "2", "--no-enable-prefix-caching", "--enforce-eager", "--dtype", "half",
        "--served-model-name", "a", "b", "--served-model-name", "c", "--api-key", "k",
        "--allowed-origins", '["http://a", "http://b"]', "--port", "9",
        "--plugin-config", "x.y=1", "--plugin-config", "x.z=text", "-o", "seed=3",
        PEGBOARD_API_KEY="env",
    )  # fmt: skip
    engine = found.engine
    assert (engine.max_model_len, engine.max_num_seqs) == (8000, 1024)
    assert engine.max_num_batched_tokens == 500_000
    assert engine.tensor_parallel_size == 2 and engine.enforce_eager
    assert not engine.enable_prefix_caching and engine.dtype == "float16"
    assert engine.plugin_config["x"] == {"y": 1, "z": "text"} and engine.seed == 3
    assert found.app.names == ("a", "b", "c") and found.app.api_keys == ("k", "env")
    assert found.app.allowed_origins == ("http://a", "http://b")
    assert found.server.port == 9 and found.app.root == "m"
    assert "k" not in repr(found.app).replace("api_keys", "").split("'")


def test_the_number_of_answers_comes_from_a_variable_unless_a_flag_says_it() -> None:
    assert settings(VLLM_MAX_N_SEQUENCES="8").app.max_n_sequences == 8
    assert settings("--max-n-sequences", "4", VLLM_MAX_N_SEQUENCES="8").app.max_n_sequences == 4
    assert settings().app.max_n_sequences == 16384
    for odd in ("many", "0"):
        with pytest.raises(ConfigError, match=r"whole number|1 to 16384"):
            settings(VLLM_MAX_N_SEQUENCES=odd)


def test_other_engines_names_and_idle_flags_are_taken() -> None:
    found = settings(
        "--context-length", "4K", "--disable-radix-cache", "--shutdown-timeout", "3",
        "--disable-log-requests", "--no-trust-remote-code",
    )  # fmt: skip
    assert found.engine.max_model_len == 4096 and not found.engine.enable_prefix_caching
    assert found.server.shutdown_grace == 3
    assert parse(["--model", "m"], {}).engine.model == "m"


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("8k", 8000), ("8K", 8192), ("1M", 1 << 20), ("1m", 10**6), ("25.6k", 25_600),
     ("2g", 2 * 10**9), ("1G", 1 << 30)],
)  # fmt: skip
def test_sizes_may_have_units(text: str, value: int) -> None:
    assert read_size(text) == value


@pytest.mark.parametrize("text", ["", "k", "8q", "1.5K", "1.2345k", "1.5", "0x8", "8 kk"])
def test_sizes_are_whole_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        settings("--max-model-len", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prot", "3"], "did you mean --port"),
        (["--max-model-length", "3"], "did you mean --max-model-len"),
        (["--enable-prefix-cache"], "did you mean --enable-prefix-caching"),
        (["-x"], "there is no -x"),
        (["--trust-remote-code"], "never run"),
        (["-pp", "2"], "pipeline"),
        (["--pipeline_parallel_size=2"], "pipeline"),
        (["--enable-lora"], "LoRA"),
        (["two"], "one MODEL"),
        (["--port", "many"], "whole number"),
        (["--port", "70000"], "0 to 65535"),
        (["--port"], "expected one argument"),
        (["--kv-transfer-config", "{"], "JSON"),
        (["--plugin-config", "x=1"], "id.key=value"),
        (["--model", "other"], "twice"),
        (["--seed", "1", "-o", "seed=2"], "twice"),
        (["-o", "sed=2"], "seed"),
        (["--max-concurrent-requests", "0"], "at least 1"),
        (["--request-timeout", "0"], "more than 0"),
        (["--shutdown-grace", "-1"], "0 or more"),
        (["--step-timeout", "nan"], "0 or more"),
        (["--ssl-keyfile", "x"], "ssl-certfile"),
        (["--api-key", ""], "empty"),
        (["--dtype", "int3"], "dtype"),
        (["--config", "no/such/file"], "cannot be read"),
        (["--max-n-sequences", "0"], "--max-n-sequences 0 is not allowed: 1 to 16384"),
        (["--max-n-sequences", "16385"], "1 to 16384"),
        (["--stream-keep-alive", "0"], "more than 0"),
        (["--chat-template-content-format", "list"], "auto, string, openai"),
    ],
)
def test_slips_are_refused_with_what_is_meant(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(*words)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_here_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(f"--{name}=1")
    assert f"--{name} is not supported: {REFUSED[name]}" == str(caught.value)


def test_a_file_holds_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: file-model\nport: 7\nmax_model_len: 8k\nenable-prefix-caching: false\n"
        "served-model-name: [a, b]\nplugin-config: {x: {y: 1}}\nchunked-prefill-size: 512\n"
        "request-timeout: 2\nkv-transfer-config: {kv_connector: f, kv_role: kv_both}\n"
        "disable-log-requests: true\n"
    )
    found = parse(["--config", str(path), "--port", "8"], {})
    assert found.engine.model == "file-model" and found.engine.max_model_len == 8000
    assert found.server.port == 8 and found.app.names == ("a", "b")
    assert not found.engine.enable_prefix_caching and found.app.request_timeout == 2
    assert found.engine.plugin_config["x"] == {"y": 1}
    assert found.engine.max_num_batched_tokens == 512
    assert found.engine.kv_transfer_config.kv_connector == "f"
    assert parse(["other", "--config", str(path)], {}).engine.model == "other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 1", "did you mean port"),
        ("trust-remote-code: true", "never run"),
        ("port: '1'", "whole number"),
        ("port: true", "whole number"),
        ("enable-prefix-caching: 3", "true or false"),
        ("max-model-len: 3q", "whole number"),
        ("port:", "whole number"),
        ("port: 1\nport: 2", "stands twice"),
        ("max-model-len: 8\nmax_model_len: 9", "'max-model-len' and 'max_model_len'"),
        ("max_model_len: 8\nmax-model-len: 8", "'max_model_len' and 'max-model-len'"),
        ("tp-size: 2\ntensor-parallel-size: 1", "'tp-size' and 'tensor-parallel-size'"),
        ("config: other.yaml", "names no further file"),
        ("option: [a=1]", "under its own name"),
        ("[1]", "lines"),
        ("1: 2", "lines"),
        ("a: [", "not valid YAML"),
        ("x: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_slips_in_a_file_name_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings("--config", str(path))
    assert said in str(caught.value) and str(path) in str(caught.value)


def test_the_help_shows_every_flag_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        parse(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{flag.name}" in text for flag in FLAGS)
    assert all(f"\n{group}:" in text for group in GROUPS)
    assert max(map(len, text.splitlines())) <= 100
