"""The models that a key may use, as OpenAI and vLLM list them, and as Anthropic does for its own clients."""

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from schemas.endings import EndingCode
from streams.dialects.neutral import RequestError
from streams.directory import Model, ModelCatalog, Tenant, pools_for
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.service import Gateway


def capabilities_of(model: Model) -> list[str]:
    if model.embedding is not None:
        return ["embeddings"]
    return ["chat.completions", "streaming", *(["tools"] if model.tool_parser else [])]


def model_object(model: Model, name: str, region: str, since_s: int) -> dict[str, Any]:
    """OpenAI's model object with vLLM's fields, and what a client needs to choose. Prices are decimal strings.

    An alias (`name`) is listed as a model of its own, whose `root` is the model.
    """
    price = model.price
    classes = {
        "input": price.uncached_input, "cached_input": price.cached_input, "output": price.output,
        "reasoning": price.reasoning,
    }  # fmt: skip
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
        "prices": {
            "currency": price.currency,
            "per_1m_tokens": {kind: f"{value:f}" for kind, value in classes.items()},
            "per_1k_tokens": {kind: f"{value / 1_000:f}" for kind, value in classes.items()},
        },
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

    def list(self, request: Request) -> Response:
        """All of them on one page, whatever page is asked for."""
        models = models_of(self._gateway.catalog, self._tenant(request))
        listed = [self._object(request, model, name) for model in models for name in (model.name, *model.aliases)]
        if not _is_anthropics(request):
            return JSONResponse({"object": "list", "data": listed})
        first, last = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
        return JSONResponse({"data": listed, "has_more": False, "first_id": first, "last_id": last})

    def one(self, request: Request, name: str) -> Response:
        if not name:
            return self.list(request)
        return JSONResponse(self._object(request, model_of(self._gateway.catalog, self._tenant(request), name), name))

    def _object(self, request: Request, model: Model, name: str) -> dict[str, Any]:
        if _is_anthropics(request):
            return anthropic_model_object(model, name, self._since_s)
        return model_object(model, name, self._region, self._since_s)

    def _tenant(self, request: Request) -> Tenant:
        return self._gateway.authenticate(api_key_of(request.headers)).tenant


def _is_anthropics(request: Request) -> bool:
    """Its clients say so with every request; the path is OpenAI's too."""
    return "anthropic-version" in request.headers
