"""The models that a key may use, as OpenAI and vLLM list them, and as Anthropic does for its own clients."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from schemas.endings import EndingCode
from schemas.money import decimal_units
from streams.clocks import now_ms
from streams.dialects.neutral import RequestError
from streams.directory import Model, ModelCatalog, Tenant, pools_for
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.service import Gateway
from streams.pricing import PriceRow, PriceScope


def capabilities_of(model: Model) -> list[str]:
    if model.embedding is not None:
        return ["embeddings"]
    return ["chat.completions", "streaming", *(["tools"] if model.tool_parser else [])]


def model_object(model: Model, name: str, region: str, since_s: int, charged: PriceRow | None = None) -> dict[str, Any]:
    """OpenAI's model object with vLLM's fields, and what a client needs to choose. Prices are decimal strings, those
    that are `charged`, where they are known, or the settings'.

    An alias (`name`) is listed as a model of its own, whose `root` is the model.
    """
    return {
        "id": name,
        "object": "model",
        "created": since_s,
        "owned_by": "sluice",
        "root": model.name,
        "parent": None if name == model.name else model.name,
        "max_model_len": model.context_window,
        "aliases": model.aliases,
        "description": model.description,
        "context_window": model.context_window,
        "capabilities": capabilities_of(model),
        "fallback": model.fallback or None,
        "dimensions": None if model.embedding is None else model.embedding.offered,
        "region": region,
        "prices": _prices_of_settings(model) if charged is None else _prices_charged(charged),
    }


def _prices_of_settings(model: Model) -> dict[str, Any]:
    price = model.price
    classes = {
        "input": price.uncached_input, "cached_input": price.cached_input, "output": price.output,
        "reasoning": price.reasoning,
    }  # fmt: skip
    return {
        "currency": price.currency,
        "per_1m_tokens": {kind: f"{value:f}" for kind, value in classes.items()},
        "per_1k_tokens": {kind: f"{value / 1_000:f}" for kind, value in classes.items()},
    }


def _prices_charged(price: PriceRow) -> dict[str, Any]:
    classes = {
        "input": price.uncached_input_pico, "cached_input": price.cached_input_pico, "output": price.output_pico,
        "reasoning": price.reasoning_pico,
    }  # fmt: skip
    return {
        "currency": price.currency,
        "per_1m_tokens": {kind: decimal_units(pico * 1_000_000) for kind, pico in classes.items()},
        "per_1k_tokens": {kind: decimal_units(pico * 1_000) for kind, pico in classes.items()},
    }


def anthropic_model_object(model: Model, name: str, since_s: int) -> dict[str, Any]:
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(since_s, UTC).isoformat(),
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "capabilities": None,
        "max_input_tokens": model.context_window,
        "max_tokens": model.context_window,
    }


def models_of(catalog: ModelCatalog, tenant: Tenant) -> list[Model]:
    return [model for model in catalog.models() if pools_for(tenant, model, catalog)]


def model_of(catalog: ModelCatalog, tenant: Tenant, name: str) -> Model:
    """By name or alias; the first where the name is empty. Raises RequestError alike for what is not and is not his."""
    models = models_of(catalog, tenant)
    model = catalog.model(name) if name else next(iter(models), None)
    if model is None or model not in models:
        raise RequestError(EndingCode.MODEL_NOT_FOUND, f"The model {name[:100]!r} does not exist.", "model")
    return model


class ModelApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._region = gateway.settings.region
        self._since_s = int(time.time())
        """When this gateway began to serve; nobody knows when a model was made."""

    async def list(self, request: Request) -> Response:
        """All of them on one page, whatever page is asked for."""
        tenant = self._tenant(request)
        models = models_of(self._gateway.catalog, tenant)
        named = [(model, name) for model in models for name in (model.name, *model.aliases)]
        listed = await self._objects(request, tenant, named)
        if not _is_anthropics(request):
            return JSONResponse({"object": "list", "data": listed})
        first, last = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
        return JSONResponse({"data": listed, "has_more": False, "first_id": first, "last_id": last})

    async def one(self, request: Request, name: str) -> Response:
        if not name:
            return await self.list(request)
        tenant = self._tenant(request)
        [found] = await self._objects(request, tenant, [(model_of(self._gateway.catalog, tenant, name), name)])
        return JSONResponse(found)

    async def _objects(
        self, request: Request, tenant: Tenant, named: Sequence[tuple[Model, str]]
    ) -> Sequence[dict[str, Any]]:
        if _is_anthropics(request):
            return [anthropic_model_object(model, name, self._since_s) for model, name in named]
        book, at_ms = await self._gateway.prices.book(), now_ms()

        def charged(model: Model) -> PriceRow | None:
            """But for prices of one endpoint or lane alone, which a model's line cannot tell."""
            used = PriceScope(model.name, tenant.tenant_id, region=self._region)
            return None if book is None else book.at(used, at_ms)

        return [model_object(model, name, self._region, self._since_s, charged(model)) for model, name in named]

    def _tenant(self, request: Request) -> Tenant:
        return self._gateway.authenticate(api_key_of(request.headers)).tenant


def _is_anthropics(request: Request) -> bool:
    """Its clients say so with every request; the path is OpenAI's too."""
    return "anthropic-version" in request.headers
