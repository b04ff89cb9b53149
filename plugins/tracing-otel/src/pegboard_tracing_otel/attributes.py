"""The attributes of a span: names as vLLM 0.33 has them."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.util.types import AttributeValue

from pegboard.api.stat_logger_front import RequestFacts

__all__ = ["attributes_of"]


def attributes_of(facts: RequestFacts, model: str) -> dict[str, AttributeValue]:
    """What is known of a request; times that it did not reach are left out."""
    params = facts.params
    known: Mapping[str, AttributeValue | None] = {
        "gen_ai.request.id": facts.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": facts.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": facts.reasons,
        "gen_ai.usage.prompt_tokens": facts.prompt_tokens,
        "gen_ai.usage.completion_tokens": sum(facts.generated),
        "gen_ai.usage.cached_tokens": facts.cached_tokens,
        "gen_ai.usage.num_sequences": len(facts.generated),
        "gen_ai.latency.e2e": facts.seconds,
        "gen_ai.latency.time_to_first_token": facts.first_token,
        "gen_ai.latency.time_in_queue": facts.queue,
        "gen_ai.latency.time_in_model_prefill": facts.prefill,
        "gen_ai.latency.time_in_model_decode": facts.decode,
        "gen_ai.latency.time_in_model_inference": _inference(facts),
    }
    return {name: value for name, value in known.items() if value is not None}


def _inference(facts: RequestFacts) -> float | None:
    """From scheduled to the last token, in seconds."""
    if facts.prefill is None or facts.decode is None:
        return None
    return facts.prefill + facts.decode
