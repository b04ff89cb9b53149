"""Fields of bodies that would change the answer and are not served: why, and what does instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["objection"]

_TOOLS = "no plugin for tool calls is installed"
_GRAMMAR = "no plugin for structured outputs is installed"
_BEAMS = "there is no beam search"
_TEXT_ONLY = "this server reads text"
_LENGTH = "use max_tokens, in /v1/responses max_output_tokens"
_CHATS = "only conversations are rendered, as those of /v1/chat/completions"
_ONE = "this API gives one answer; /v1/chat/completions has n"
_SAMPLER = "there is no such sampler; temperature, top_p, top_k and min_p are"
_LOGPROBS = "only /v1/completions and /v1/chat/completions tell log-probabilities this way"
_VARIABLE = "variables of the chat template stand in chat_template_kwargs"

_REASONS = {
    "add_generation_prompt": _CHATS,
    "add_special_tokens": "/tokenize gives ids without them, and a prompt may be ids",
    "audio": "this server writes text",
    "bad_words": "use logit_bias or allowed_token_ids",
    "best_of": "all that is made is returned; use n",
    "chat_template": _CHATS,
    "chat_template_kwargs": _CHATS,
    "continue_final_message": _CHATS,
    "documents": _CHATS,
    "dry_multiplier": _SAMPLER,
    "echo": "only /v1/completions gives the prompt back",
    "enable_thinking": _VARIABLE,
    "format": _GRAMMAR,
    "function_call": _TOOLS,
    "functions": _TOOLS,
    "grammar": _GRAMMAR,
    "guided_choice": _GRAMMAR,
    "guided_decoding_backend": _GRAMMAR,
    "guided_grammar": _GRAMMAR,
    "guided_json": _GRAMMAR,
    "guided_regex": _GRAMMAR,
    "guided_whitespace_pattern": _GRAMMAR,
    "include_stop_str_in_output": "only /v1/completions and /v1/chat/completions have it",
    "input": "use prompt in /v1/completions, messages in /v1/chat/completions",
    "instructions": "use a message of the role 'system'",
    "json_schema": _GRAMMAR,
    "kv_transfer_params": "they are not taken over HTTP",
    "length_penalty": _BEAMS,
    "logits_processors": "processors are chosen by the operator; extra_args are their arguments",
    "logprobs": _LOGPROBS,
    "lora_adapter": "there are no adapters (LoRA)",
    "lora_path": "there are no adapters (LoRA)",
    "max_completion_tokens": _LENGTH,
    "max_length": _LENGTH,
    "max_new_tokens": _LENGTH,
    "max_output_tokens": "use max_tokens",
    "max_tokens": "use max_output_tokens",
    "messages": "use prompt in /v1/completions, input in /v1/responses",
    "mirostat": _SAMPLER,
    "mm_processor_kwargs": _TEXT_ONLY,
    "modalities": "this server writes text",
    "n": _ONE,
    "n_predict": _LENGTH,
    "num_beams": _BEAMS,
    "num_predict": _LENGTH,
    "options": "fields such as temperature stand in the body itself",
    "output_format": _GRAMMAR,
    "plugins": "no plugins are chosen by requests",
    "prediction": "there are no predicted outputs",
    "previous_input_messages": "send the whole conversation as input",
    "prompt": "use messages",
    "prompt_embeds": "prompts are texts or token ids",
    "prompt_logprobs": _LOGPROBS,
    "reasoning": "use reasoning_effort",
    "reasoning_effort": "use reasoning.effort in /v1/responses, output_config.effort in "
    "/v1/messages; only conversations have it",
    "regex": _GRAMMAR,
    "repeat_penalty": "use repetition_penalty",
    "response_format": "use text.format in /v1/responses; other APIs have no such field",
    "return_logprob": "use logprobs",
    "stop": "use stop_sequences",
    "stop_sequences": "use stop",
    "structural_tag": _GRAMMAR,
    "structured_outputs": _GRAMMAR,
    "suffix": "the model does not fill in the middle",
    "system": "use a message of the role 'system'",
    "tfs_z": _SAMPLER,
    "thinking": _VARIABLE,
    "thinking_token_budget": "no plugin that tells thoughts apart is installed",
    "tool_choice": _TOOLS,
    "tools": _TOOLS,
    "top_a": _SAMPLER,
    "top_logprobs": "use logprobs in /v1/completions; others do not have it",
    "truncate_prompt_tokens": "prompts are never cut",
    "truncation": "prompts are never cut",
    "typical_p": _SAMPLER,
    "use_beam_search": _BEAMS,
    "verbosity": "use text.verbosity in /v1/responses; only conversations have it",
    "vllm_xargs": "use extra_args",
    "web_search_options": "this server does not search",
    "xtc_probability": _SAMPLER,
}
"""By name, whichever API the field is of; it holds for those that lack it."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "n": (1,),
    "num_beams": (1,),
    "repeat_penalty": (1,),
    "tfs_z": (1,),
    "tool_choice": ("none", "auto"),
    "truncate_prompt_tokens": (-1,),
    "truncation": ("disabled",),
    "typical_p": (1,),
}
"""Values beside null, false, zero and empty ones that ask for what is so anyway."""

_CLOSE = 0.85
"""From which likeness on (0 to 1) an unknown name is taken for a slip."""
_LONGEST = 40
"""Characters of a name that is compared."""


def objection(name: str, value: Any, known: Iterable[str], *, compare: bool) -> str | None:
    """Why a body may not have a field that its API, which has the fields `known`, does not know.
    None: it changes nothing. `compare`: look for a slip, which takes a while."""
    if name in _REASONS:
        idle = _asks_nothing(name, value, known)
        return None if idle else f"{name} is not supported here: {_REASONS[name]}; leave it out"
    if compare and value is not None and len(name) <= _LONGEST:
        near: Sequence[str] = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
        if near:
            return f"there is no field {name!r}; did you mean {near[0]}?"
    return None


def _asks_nothing(name: str, value: Any, known: Iterable[str]) -> bool:
    if name == "add_special_tokens":  # a template writes its own, a plain text is given them
        return value is None or value is ("messages" not in known)
    return not value or value in _NEUTRAL.get(name, ())
