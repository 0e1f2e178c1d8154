"""How figures of usage and cost are told: in our own words and in OpenAI's. Pure.

Ours tell disjoint classes of tokens. OpenAI's `input_tokens` hold the cached ones, and their `output_tokens` the
reasoning. Amounts are exact decimals wherever they stand, also where OpenAI has a number of JSON's.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from schemas.money import decimal_units
from schemas.request import Lane
from schemas.usage_query import TOKEN_CLASSES
from streams.gateway.http.usage_reader import UsagePage
from streams.gateway.http.usage_words import Question

Result = Mapping[str, Any]
Tell = Callable[[Question, Result], dict[str, Any] | None]
"""One result of billing's as its client is told it; None: not at all."""
_TIER_OF_LANE: Final = {Lane.INTERACTIVE: "priority", Lane.STANDARD: "default", Lane.BATCH: "batch"}


def page_object(question: Question, page: UsagePage, tell: Tell) -> dict[str, Any]:
    buckets = [
        {
            "object": "bucket",
            "start_time": bucket.start_time,
            "end_time": bucket.end_time,
            "estimate": bucket.estimate,
            "results": [told for result in bucket.results if (told := tell(question, result)) is not None],
        }
        for bucket in page.data
    ]
    next_page = question.cursor(page.next_start)
    return {
        "object": "page",
        "data": buckets,
        "has_more": next_page is not None,
        "next_page": next_page,
        "finalized_through": page.finalized_through,
        "lag_records": page.lag_records,
        "estimate": any(bucket.estimate for bucket in page.data),
    }


def _groups(question: Question, result: Result) -> dict[str, Any]:
    return {theirs: result[ours] for theirs, ours in question.groups.items()}


def _money(result: Result) -> dict[str, Any]:
    """Nothing has a currency that no price is known for."""
    cost, currency = decimal_units(int(result["cost_pico"])), result["currency"] or None
    return {
        "currency": currency,
        "cost_pico": result["cost_pico"],
        "cost": cost,
        "cost_usd": cost if currency == "USD" else None,
    }


def own_usage(question: Question, result: Result) -> dict[str, Any]:
    figures = {name: result[name] for name in ("requests", *TOKEN_CLASSES, "suspense_events")}
    return {**_groups(question, result), **figures, **_money(result)}


def own_costs(question: Question, result: Result) -> dict[str, Any]:
    """Line items have a quantity, in tokens. What waits for a price is in none of them."""
    figure = "quantity" if "quantity" in result else "suspense_events"
    return {**_groups(question, result), figure: result[figure], **_money(result)}


def _openai_groups(question: Question, result: Result, names: tuple[str, ...]) -> dict[str, Any]:
    """Those that were not asked for are null, as are a lane and a model of what came to none."""
    told = {**dict.fromkeys(names), **_groups(question, result)}
    if told.get("service_tier") is not None:
        told["service_tier"] = _TIER_OF_LANE.get(told["service_tier"])
    return told


def openai_completions(question: Question, result: Result) -> dict[str, Any]:
    uncached, cached = result["uncached_input_tokens"], result["cached_input_tokens"]
    output = result["output_tokens"] + result["reasoning_tokens"]
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": uncached + cached,
        "input_cached_tokens": cached,
        "input_uncached_tokens": uncached,
        "input_cache_write_tokens": 0,
        "input_text_tokens": uncached,
        "input_cached_text_tokens": cached,
        "output_tokens": output,
        "output_text_tokens": output,
        **dict.fromkeys(("input_audio_tokens", "input_cached_audio_tokens", "output_audio_tokens"), 0),
        **dict.fromkeys(("input_image_tokens", "input_cached_image_tokens", "output_image_tokens"), 0),
        "num_model_requests": result["requests"],
        **_openai_groups(question, result, ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier")),
    }


def openai_embeddings(question: Question, result: Result) -> dict[str, Any]:
    return {
        "object": "organization.usage.embeddings.result",
        "input_tokens": result["uncached_input_tokens"] + result["cached_input_tokens"],
        "num_model_requests": result["requests"],
        **_openai_groups(question, result, ("project_id", "user_id", "api_key_id", "model")),
    }


def openai_costs(question: Question, result: Result) -> dict[str, Any] | None:
    """Their amounts are numbers of JSON's; these are written digit by digit."""
    if not result["currency"]:
        return None
    value = orjson.Fragment(decimal_units(int(result["cost_pico"])).encode())
    return {
        "object": "organization.costs.result",
        "amount": {"value": value, "currency": result["currency"].lower()},
        "quantity": result.get("quantity"),
        **_openai_groups(question, result, ("project_id", "line_item", "api_key_id")),
    }
