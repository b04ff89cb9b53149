"""The flags of ``pegboard serve``, in one table: parser, help, configuration file and documentation
are made from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs

from pegboard.errors import ConfigError

__all__ = ["FLAGS", "GROUPS", "Flag", "read_size"]

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def read_size(text: str) -> int:
    """A whole number, which may end in a unit: ``8k`` is 8,000 and ``8K`` is 8,192; so with m, M,
    g and G. Decimal units may have a fraction: ``1.5k``."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    if unit > 1 and text[-1].islower():
        value = float(number) * unit
        if value != int(value):
            raise ValueError(text)
        return int(value)
    return int(number) * unit


def _read_json(text: str) -> Any:
    return json.loads(text)


def _read_words(text: str) -> Any:
    """A name, or a JSON list of names."""
    return json.loads(text) if text.startswith("[") else text


@attrs.frozen
class Flag:
    """One flag and where its value goes."""

    name: str
    """Without the hyphens before it; also the key in a configuration file."""
    part: str
    """``engine``: a setting of `pegboard.EngineConfig`; ``app``: a field of `AppOptions`;
    ``server``: one of `ServerOptions`."""
    group: str
    help: str
    kind: str = "text"
    """``text``, ``int``, ``size``, ``float``, ``json``, ``switch`` (with a ``--no-`` form),
    ``texts`` (several), ``pairs`` (several ``id.key=value``)."""
    setting: str = ""
    """The field's name, where it is not the flag's with underscores."""
    short: str = ""

    @property
    def field(self) -> str:
        """The field's name."""
        return self.setting or self.name.replace("-", "_")

    @property
    def reader(self) -> Callable[[str], Any]:
        """From a word of the command line to a value; raises `ValueError`."""
        readers: dict[str, Callable[[str], Any]] = {
            "int": int,
            "size": read_size,
            "float": float,
            "json": _read_json,
            "texts": _read_words,
        }
        return readers.get(self.kind, str)

    def check(self, value: Any, source: str) -> Any:
        """A value of a configuration file. Raises `ConfigError` for one of the wrong type."""
        kinds: dict[str, tuple[type, ...]] = {
            "int": (int,),
            "size": (int, str),
            "float": (int, float),
            "switch": (bool,),
            "texts": (list, str),
            "json": (dict, list, str),
            "pairs": (dict, list),
            "text": (str,),
        }
        odd = isinstance(value, bool) and self.kind != "switch"
        if value is None or odd or not isinstance(value, kinds[self.kind]):
            raise ConfigError(
                f"{source}: {self.name}={value!r} is not allowed: it must be {self._wanted()}"
            )
        if isinstance(value, str) and self.kind in ("size", "json"):
            try:
                return self.read(value)
            except ConfigError as error:
                raise ConfigError(f"{source}: {self.name}: {error}") from None
        if self.kind == "texts" and isinstance(value, str):
            return [value]
        return value

    def read(self, text: str) -> Any:
        """The value that `text` stands for. Raises `ConfigError`."""
        try:
            return self.reader(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not allowed: it must be {self._wanted()}") from None

    def _wanted(self) -> str:
        return {
            "int": "a whole number",
            "size": "a whole number, such as 8192, 8K or 8k",
            "float": "a number",
            "switch": "true or false",
            "texts": "a text or a list of texts",
            "json": "JSON",
            "pairs": "texts id.key=value, or a mapping of mappings",
        }.get(self.kind, "a text")


GROUPS = (
    "Server",
    "Limits",
    "Access",
    "Operation",
    "Model",
    "Scheduling",
    "Cache",
    "Devices",
    "Plugins",
    "Other names",
)
"""In the order of the help."""


def _flags(part: str, group: str, *rows: tuple[Any, ...]) -> tuple[Flag, ...]:
    return tuple(Flag(row[0], part, group, *row[1:]) for row in rows)


_SERVER = (
    *_flags(
        "server",
        "Server",
        ("host", "Address to listen on. Default: 127.0.0.1."),
        ("port", "Port to listen on; 0 takes a free one. Default: 8000.", "int"),
        ("uds", "Path of a Unix socket to listen on instead."),
        ("ssl-keyfile", "Key for TLS."),
        ("ssl-certfile", "Certificate for TLS."),
        ("ssl-ca-certs", "Certificates that clients' certificates are checked with."),
        ("ssl-cert-reqs", "Clients need 0: no certificate, 1: none or a good one, 2: one.", "int"),
    ),
    *_flags(
        "app",
        "Server",
        ("served-model-name", "Names that clients use. Default: MODEL.", "texts", "names"),
        ("root-path", "Prefix that a proxy takes away."),
    ),
    *_flags(
        "app",
        "Limits",
        ("max-concurrent-requests", "Requests under /v1 at once; more are answered 429.", "int"),
        ("max-body-bytes", "Longest body. Default: 32M.", "size"),
        ("max-n-sequences", "Most answers to one prompt (n); also VLLM_MAX_N_SEQUENCES. "
         "Default: 16384.", "size"),
        ("request-timeout", "Seconds that a request may take, at most.", "float"),
    ),
    *_flags(
        "app",
        "Access",
        ("api-key", "Keys for clients; also PEGBOARD_API_KEY.", "texts", "api_keys"),
        ("allowed-origins", "Origins that browsers may call from. Default: all.", "texts"),
        ("allowed-methods", "Methods that browsers may use. Default: all.", "texts"),
        ("allowed-headers", "Headers that browsers may send. Default: all.", "texts"),
        ("allow-credentials", "Browsers may send cookies.", "switch"),
        ("trust-request-chat-template", "Requests may bring chat templates.", "switch"),
        ("enable-response-store", "Keep answers of /v1/responses for a while.", "switch"),
        ("dev", "Routes for development: /pause, /abort_requests and others.", "switch"),
    ),
    *_flags(
        "app",
        "Operation",
        ("step-timeout", "Seconds without a sign of the working engine until /health is 503; "
         "0: never. Default: 300.", "float"),
        ("stream-keep-alive", "Seconds of silence after which OpenAI's streams send a comment. "
         "Default: none do.", "float"),
    ),
    *_flags(
        "server",
        "Operation",
        ("shutdown-grace", "Seconds that running requests get at the end. Default: 10.", "float"),
        ("exit-on-engine-death", "End with status 1 when the engine has died. Default: yes.",
         "switch"),
    ),
)  # fmt: skip

_MODEL = _flags(
    "engine",
    "Model",
    ("dtype", "auto, float32 (exact), bfloat16 or float16."),
    ("max-model-len", "Longest prompt plus answer, in tokens.", "size"),
    ("quantization", "Quantise, or read, by this method.", "text", "", "q"),
    ("load-format", "auto, or dummy: weights are made up."),
    ("revision", "Revision of a hub id."),
    ("tokenizer", "Another checkpoint's tokeniser."),
    ("tokenizer-mode", "Kind of tokeniser. Default: auto."),
    ("skip-tokenizer-init", "Load no tokeniser; prompts are token ids.", "switch"),
    ("chat-template", "Path or source of a template, or the name of one of the model's."),
    ("logits-processors", "Logits processors for every request.", "texts"),
    ("seed", "Of requests that bring none. Default: 0.", "int"),
)
_TEMPLATES = _flags(
    "app",
    "Model",
    ("chat-template-content-format", "How messages reach the template: auto, string or openai."),
)
_SCHEDULING = _flags(
    "engine",
    "Scheduling",
    ("max-num-seqs", "Most requests in a step. Default: 128.", "size"),
    ("max-num-batched-tokens", "Token budget of a step. Default: 2048.", "size"),
    ("scheduling-policy", "fcfs, priority or lpm."),
    ("enable-chunked-prefill", "Long prompts run in pieces. Default: yes.", "switch"),
    ("max-num-partial-prefills", "Prompts that may be unfinished at once.", "int"),
    ("max-long-partial-prefills", "Of these, how many may be long.", "int"),
    ("long-prefill-token-threshold", "From how many tokens on a prompt is long.", "size"),
    ("scheduler-reserve-full-isl", "Admit only what fits as a whole. Default: yes.", "switch"),
    ("scheduler-cls", "A registered scheduler, or module:attribute."),
    ("async-scheduling", "Plan a step while the one before runs. Default: if it can.", "switch"),
    ("stream-interval", "Tokens between two pieces of a stream. Default: 1.", "int"),
)
_CACHE = _flags(
    "engine",
    "Cache",
    ("kv-cache-dtype", "Of keys and values: auto, fp8 or a dtype."),
    ("block-size", "Tokens per block. Default: 16.", "int"),
    ("gpu-memory-utilization", "Share of the device's memory to use. Default: 0.9.", "float"),
    ("kv-cache-memory-bytes", "Bytes for the cache, whatever the profile says.", "size"),
    ("num-gpu-blocks-override", "Blocks of the cache, whatever the memory says.", "size"),
    ("watermark", "Share of the blocks kept free. Default: 0.01.", "float"),
    ("enable-prefix-caching", "Keep beginnings of prompts. Default: yes.", "switch"),
    ("mamba-cache-mode", "Which recurrent states are kept: auto, none, align or all."),
    ("kv-transfer-config", "JSON: the KV connector and its settings.", "json"),
    ("kv-events-config", "JSON: who is told of the prefix cache.", "json"),
)
_DEVICES = _flags(
    "engine",
    "Devices",
    ("tensor-parallel-size", "Devices that share every layer out.", "int", "", "tp"),
    ("platform", "The device's platform. Default: the best usable one."),
    ("attention-backend", "Default: the best one that serves the model."),
    ("enforce-eager", "Record no steps.", "switch"),
    ("op-versions", "auto, or plain: the core's own of every op."),
    ("distributed-executor-backend", "A registered executor."),
)
_PLUGINS = _flags(
    "engine",
    "Plugins",
    ("plugin-config", "A plugin's setting, id.key=value; may be repeated.", "pairs"),
    ("strict-plugins", "A plugin that fails to load is fatal.", "switch"),
    ("no-plugins-except", "A second allowlist beside VLLM_PLUGINS."),
    ("plugins-lock", "A lock that the installed plugins must match."),
    ("unsafe-plugins", "Let plugins replace parts of the core.", "switch"),
    (
        "stat-loggers",
        "Who is told what happens. Default: those that are on by themselves.",
        "texts",
    ),
    (
        "tracer",
        "Who is told of each request. Default: the only tracer, where there is an endpoint.",
    ),
    ("otlp-traces-endpoint", "URL that spans are sent to."),
)
_ALIASES = _flags(
    "engine",
    "Other names",
    ("chunked-prefill-size", "As --max-num-batched-tokens.", "size"),
    ("context-length", "As --max-model-len.", "size"),
    ("disable-log-stats", "No stat loggers at all, nor metrics.", "switch"),
    ("disable-radix-cache", "As --no-enable-prefix-caching.", "switch"),
    ("max-running-requests", "As --max-num-seqs.", "size"),
    ("mem-fraction-static", "As --gpu-memory-utilization.", "float"),
    ("page-size", "As --block-size.", "int"),
    ("random-seed", "As --seed.", "int"),
    ("schedule-policy", "As --scheduling-policy."),
)

FLAGS = (*_SERVER, *_MODEL, *_TEMPLATES, *_SCHEDULING, *_CACHE, *_DEVICES, *_PLUGINS, *_ALIASES)
