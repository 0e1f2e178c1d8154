"""The OpenAPI document: what FastAPI cannot know of routes that answer by themselves is added here."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from schemas.usage_query import TOKEN_CLASSES
from streams.dialects.anthropic.body import messages_schemas
from streams.dialects.browser_token import token_body_schema
from streams.dialects.conversations import conversation_schemas
from streams.dialects.openai_batch import batch_body_schema
from streams.dialects.openai_embeddings import embeddings_schema
from streams.dialects.openai_schema import chat_schema, completion_schema
from streams.dialects.responses.schema import responses_schema
from streams.dialects.vllm_tokens import token_schemas
from streams.gateway.batches.core import Status as BatchStatus
from streams.gateway.batches.objects import STAMPS as BATCH_STAMPS
from streams.gateway.operations.snapshot import operations_schema

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_PLAIN: Final = {"text/plain": {"schema": _TEXT}}
_BYTES: Final[dict[str, Any]] = {
    "application/octet-stream": {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
}
_FILES: Final[dict[str, dict[str, Any]]] = {
    "/api/usage/export": {
        media: {"schema": {"type": "string", "contentMediaType": media}}
        for media in ("text/csv", "application/vnd.apache.parquet")
    }
}


def _maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """Fields may be added to it; none of these is ever missing."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def body_of(*names: str) -> dict[str, Any]:
    """Of a route: what its body is, by the name of a schema, or one of several."""
    refs = [_ref(name) for name in names]
    schema = refs[0] if len(refs) == 1 else {"oneOf": refs}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def form_of(name: str) -> dict[str, Any]:
    """Of a route: which form its body is, by the name of a schema."""
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _ref(name)}}}}


_CALL: Final = _object(id=_TEXT, type={"const": "function"}, function=_object(name=_TEXT, arguments=_TEXT))
_MESSAGE: Final = _object(role={"const": "assistant"}, content=_maybe(_TEXT))
_MESSAGE["properties"] |= {"reasoning_content": _TEXT, "tool_calls": _list(_CALL)}
# Tools for OpenAPI 3.1 read what stands beside `text/event-stream` as one event.
_EVENT: Final = _object(data=_TEXT)
_EVENT["properties"] |= {"event": _TEXT, "id": _TEXT}
_TOLD: Final = _object(token=_TEXT, logprob=_NUMBER, bytes=_list(_WHOLE))
_TOKEN: Final = _object(token=_TEXT, logprob=_NUMBER, bytes=_list(_WHOLE), top_logprobs=_list(_TOLD))
_CHAT_LOGPROBS: Final = _maybe(_object(content=_list(_TOKEN), refusal={"type": "null"}))
_TEXT_LOGPROBS: Final = _maybe(
    _object(
        tokens=_list(_TEXT), token_logprobs=_list(_NUMBER), text_offset=_list(_WHOLE),
        top_logprobs=_list({"type": "object", "additionalProperties": _NUMBER}),
    )
)  # fmt: skip
_PRICES: Final = {"type": "object", "additionalProperties": {"type": "string", "description": "A decimal number."}}
_MONEY: Final = {"currency": _maybe(_TEXT), "cost_pico": _TEXT, "cost": _TEXT, "cost_usd": _maybe(_TEXT)}
_OF_WHOM: Final = {name: _maybe(_TEXT) for name in ("project_id", "user_id", "api_key_id", "model")}


def _usage_page(result: dict[str, Any]) -> dict[str, Any]:
    bucket = _object(
        object={"const": "bucket"}, start_time=_WHOLE, end_time=_WHOLE, estimate={"type": "boolean"},
        results=_list(result),
    )  # fmt: skip
    return _object(
        object={"const": "page"}, data=_list(bucket), has_more={"type": "boolean"}, next_page=_maybe(_TEXT),
        finalized_through=_WHOLE, lag_records=_WHOLE, estimate={"type": "boolean"},
    )  # fmt: skip


_VECTOR: Final = {
    "oneOf": [
        {"type": "array", "items": {"type": "number"}},
        {"type": "string", "description": "Base64 of little-endian float32."},
    ]
}
_VECTORS: Final = _list(_object(object={"const": "embedding"}, index=_WHOLE, embedding=_VECTOR))
_USAGE_OF_PROMPT: Final = _object(prompt_tokens=_WHOLE, total_tokens=_WHOLE)
_STATUS: Final = {"enum": ["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]}
_FILE: Final = _object(
    id=_TEXT, object={"const": "file"}, bytes=_WHOLE, created_at=_WHOLE, expires_at=_maybe(_WHOLE), filename=_TEXT,
    purpose={"enum": ["batch", "batch_output"]}, status={"const": "processed"},
)  # fmt: skip
_BATCH: Final = _object(
    id=_TEXT, object={"const": "batch"}, endpoint=_TEXT, input_file_id=_TEXT, completion_window=_TEXT,
    status={"enum": [*BatchStatus]}, output_file_id=_maybe(_TEXT), error_file_id=_maybe(_TEXT),
    errors=_maybe(_object(object={"const": "list"}, data=_list(_object(code=_TEXT, message=_TEXT)))),
    created_at=_WHOLE, expires_at=_WHOLE, **dict.fromkeys(BATCH_STAMPS, _maybe(_WHOLE)),
    request_counts=_object(total=_WHOLE, completed=_WHOLE, failed=_WHOLE), metadata=_maybe({"type": "object"}),
)  # fmt: skip


def _page(items: dict[str, Any]) -> dict[str, Any]:
    return _object(
        object={"const": "list"}, data=_list(items), first_id=_maybe(_TEXT), last_id=_maybe(_TEXT),
        has_more={"type": "boolean"},
    )  # fmt: skip


_ITEM: Final = _object(
    id=_TEXT, type={"enum": ["message", "reasoning", "function_call", "function_call_output"]}, status=_TEXT
)
_NAMED: Final = _object(
    id=_TEXT, object={"const": "conversation"}, created_at=_WHOLE, metadata={"type": "object"}, title=_TEXT,
    updated_at=_WHOLE,
)  # fmt: skip
_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "Error": _object(error=_object(message=_TEXT, type=_TEXT, param=_maybe(_TEXT), code=_TEXT)),
    "Usage": _object(prompt_tokens=_WHOLE, completion_tokens=_WHOLE, total_tokens=_WHOLE),
    "ChatCompletion": _object(
        id=_TEXT, object={"const": "chat.completion"}, created=_WHOLE, model=_TEXT, usage=_ref("Usage"),
        choices=_list(
            _object(index=_WHOLE, finish_reason=_TEXT, message=_MESSAGE, logprobs=_CHAT_LOGPROBS)
        ),
    ),
    "ChatCompletionState": _object(
        id=_TEXT, object={"const": "chat.completion"}, created=_WHOLE, model=_TEXT, usage=_maybe(_ref("Usage")),
        choices=_list(
            _object(
                index=_WHOLE, finish_reason=_maybe(_TEXT), message=_object(role={"const": "assistant"}),
                logprobs=_CHAT_LOGPROBS,
            )
        ),
        status=_STATUS, sequence_number=_WHOLE, code=_maybe(_TEXT), error=_maybe({"type": "object"}),
    ),
    "Completion": _object(
        id=_TEXT, object={"const": "text_completion"}, created=_WHOLE, model=_TEXT, usage=_ref("Usage"),
        choices=_list(_object(index=_WHOLE, finish_reason=_TEXT, text=_TEXT, logprobs=_TEXT_LOGPROBS)),
    ),
    "CompletionState": _object(
        id=_TEXT, object={"const": "text_completion"}, created=_WHOLE, model=_TEXT, usage=_maybe(_ref("Usage")),
        choices=_list(_object(index=_WHOLE, finish_reason=_maybe(_TEXT), text=_TEXT, logprobs=_TEXT_LOGPROBS)),
        status=_STATUS, sequence_number=_WHOLE, code=_maybe(_TEXT), error=_maybe({"type": "object"}),
    ),
    "Embeddings": _object(
        object={"const": "list"}, model=_TEXT, usage=_USAGE_OF_PROMPT, data=_VECTORS,
    ),
    "EmbeddingsState": _object(
        object={"const": "list"}, model=_TEXT, id=_TEXT, status=_STATUS, error=_maybe({"type": "object"}),
        usage=_maybe(_USAGE_OF_PROMPT), data=_VECTORS,
    ),
    "Response": _object(
        id=_TEXT, object={"const": "response"}, created_at=_WHOLE, completed_at=_maybe(_WHOLE), model=_TEXT,
        status=_STATUS, output=_list(_object(id=_TEXT, type={"enum": ["message", "reasoning", "function_call"]})),
        error=_maybe(_object(code=_TEXT, message=_TEXT)), incomplete_details=_maybe(_object(reason=_TEXT)),
        usage=_maybe(_object(input_tokens=_WHOLE, output_tokens=_WHOLE, total_tokens=_WHOLE)),
        instructions=_maybe(_TEXT), metadata={"type": "object"}, tools=_list({"type": "object"}),
        parallel_tool_calls={"type": "boolean"}, background={"type": "boolean"}, store={"type": "boolean"},
        previous_response_id=_maybe(_TEXT),
    ),
    "DeletedResponse": _object(id=_TEXT, object={"const": "response"}, deleted={"const": True}),
    "DeletedChatCompletion": _object(
        id=_TEXT, object={"const": "chat.completion.deleted"}, deleted={"const": True}
    ),
    "InputItems": _object(
        object={"const": "list"}, has_more={"type": "boolean"}, first_id=_maybe(_TEXT), last_id=_maybe(_TEXT),
        data=_list(
            _object(id=_TEXT, type={"enum": ["message", "function_call", "function_call_output"]}, status=_TEXT)
        ),
    ),
    "Job": _object(
        object={"const": "job"}, custom_id=_TEXT, id=_TEXT, status=_STATUS, code=_maybe(_TEXT),
        error=_maybe({"type": "object"}), model=_TEXT, accepted_at_ms=_maybe(_WHOLE), expires_at_ms=_maybe(_WHOLE),
        ended_at_ms=_maybe(_WHOLE), usage=_maybe(_ref("Usage")),
    ),
    "Conversation": _object(
        id=_TEXT, object={"const": "conversation"}, created_at=_WHOLE, metadata={"type": "object"}
    ),
    "DeletedConversation": _object(id=_TEXT, object={"const": "conversation.deleted"}, deleted={"const": True}),
    "ConversationItem": _ITEM,
    "ConversationItems": _object(
        object={"const": "list"}, has_more={"type": "boolean"}, first_id=_maybe(_TEXT), last_id=_maybe(_TEXT),
        data=_list(_ITEM),
    ),
    "NamedConversation": _NAMED,
    "Conversations": _object(
        object={"const": "list"}, has_more={"type": "boolean"}, first_id=_maybe(_TEXT), last_id=_maybe(_TEXT),
        data=_list(_NAMED),
    ),
    "WholeConversation": _object(
        **_NAMED["properties"], model=_TEXT, total_tokens=_WHOLE, has_more={"type": "boolean"},
        messages=_list(
            _object(role=_TEXT, content=_TEXT, created_at=_WHOLE, response_id=_maybe(_TEXT))
        ),
        turns=_list(
            _object(
                response_id=_TEXT, previous_response_id=_maybe(_TEXT), created_at=_WHOLE, status=_STATUS,
                branches=_list(_TEXT), model=_TEXT, code=_maybe(_TEXT), finish_reason=_maybe(_TEXT),
                usage=_maybe(_ref("Usage")), error=_maybe({"type": "object"}), reasoning=_TEXT,
            )
        ),
    ),
    "Model": _object(
        id=_TEXT, object={"const": "model"}, created=_WHOLE, owned_by=_TEXT, root=_TEXT, parent=_maybe(_TEXT),
        max_model_len=_WHOLE, aliases=_list(_TEXT), description=_TEXT, context_window=_WHOLE,
        capabilities=_list(_TEXT), region=_TEXT, dimensions=_maybe(_list(_WHOLE)),
        prices=_object(currency=_TEXT, per_1m_tokens=_PRICES, per_1k_tokens=_PRICES),
    ),
    "Models": _object(object={"const": "list"}, data=_list(_ref("Model"))),
    "UsagePage": _usage_page(
        _object(requests=_WHOLE, **dict.fromkeys(TOKEN_CLASSES, _WHOLE), suspense_events=_WHOLE, **_MONEY)
    ),
    "CostsPage": _usage_page(_object(**_MONEY)),
    "CompletionsUsagePage": _usage_page(
        _object(
            object={"const": "organization.usage.completions.result"}, input_tokens=_WHOLE, input_cached_tokens=_WHOLE,
            input_uncached_tokens=_WHOLE, output_tokens=_WHOLE, num_model_requests=_WHOLE, **_OF_WHOM,
            batch=_maybe({"type": "boolean"}), service_tier=_maybe(_TEXT),
        )
    ),
    "EmbeddingsUsagePage": _usage_page(
        _object(
            object={"const": "organization.usage.embeddings.result"}, input_tokens=_WHOLE, num_model_requests=_WHOLE,
            **_OF_WHOM,
        )
    ),
    "OrganizationCostsPage": _usage_page(
        _object(
            object={"const": "organization.costs.result"}, amount=_object(value=_NUMBER, currency=_TEXT),
            quantity=_maybe(_WHOLE), project_id=_maybe(_TEXT), line_item=_maybe(_TEXT), api_key_id=_maybe(_TEXT),
        )
    ),
    "Token": _object(
        object={"const": "token"}, token=_TEXT, expires_at=_WHOLE, expires_in_s=_WHOLE, scopes=_list(_TEXT),
        key_id=_TEXT, project_id=_TEXT,
    ),
    "FileForm": {
        "type": "object", "required": ["purpose", "file"], "additionalProperties": False,
        "properties": {
            "purpose": {"const": "batch"}, "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": {"type": "integer", "minimum": 3_600, "maximum": 2_592_000},
        },
    },
    "File": _FILE,
    "Files": _page(_FILE),
    "DeletedFile": _object(id=_TEXT, object={"const": "file"}, deleted={"const": True}),
    "Batch": _BATCH,
    "Batches": _page(_BATCH),
    "Version": _object(version=_TEXT),
    "Tokens": _object(count=_WHOLE, max_model_len=_WHOLE, tokens=_list(_WHOLE), token_strs=_maybe(_list(_TEXT))),
    "Prompt": _object(prompt=_TEXT),
    "MessageError": _object(
        type={"const": "error"}, request_id=_maybe(_TEXT),
        error=_object(type=_TEXT, message=_TEXT, code=_TEXT, param=_maybe(_TEXT), details=_object(error_code=_TEXT)),
    ),
    "MessageUsage": _object(
        input_tokens=_WHOLE, cache_creation_input_tokens=_WHOLE, cache_read_input_tokens=_WHOLE, output_tokens=_WHOLE,
        output_tokens_details=_object(thinking_tokens=_WHOLE),
    ),
    "Message": _object(
        id=_TEXT, type={"const": "message"}, role={"const": "assistant"}, model=_TEXT, usage=_ref("MessageUsage"),
        stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]},
        stop_sequence=_maybe(_TEXT),
        stop_details=_maybe(_object(type={"const": "refusal"}, explanation=_maybe(_TEXT))),
        content=_list(_object(type={"enum": ["text", "thinking", "tool_use"]})),
    ),
    "MessageState": _object(
        id=_TEXT, type={"const": "message"}, role={"const": "assistant"}, model=_TEXT, usage=_ref("MessageUsage"),
        stop_reason=_maybe(_TEXT), content=_list(_object(type={"enum": ["text", "thinking", "tool_use"]})),
        status=_STATUS, sequence_number=_WHOLE, code=_maybe(_TEXT), error=_maybe({"type": "object"}),
    ),
    "MessageTokens": _object(input_tokens=_WHOLE),
}  # fmt: skip
_STATUSES: Final = {
    400: "The request is invalid; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "What was shown may not be used for this.",
    404: "Unknown, or not yours.",
    408: "The body did not come in time.",
    409: "It cannot be replayed here, or not now, or it has not ended, or has; see `Retry-After`. Or its"
    " `Idempotency-Key` was used for another request.",
    413: "The body is too large.",
    415: "The body is no plain JSON.",
    429: "A limit is reached; see `Retry-After` and `x-ratelimit-*`.",
    499: "The response was cancelled.",
    502: "The answer was lost; it may be asked for again.",
    503: "Not now; see `Retry-After`.",
    504: "The deadline passed before the answer was complete.",
}
_ANY_KEY: Final = (401, 429, 503)
"""Whatever asks for a key may be refused so."""
_KEY: Final = (*_ANY_KEY, 403)
"""And so what asks for one that may be used for it."""
_BODY: Final = (400, 404, 408, 413, 415)
_GENERATING: Final = (*_KEY, *_BODY, 409, 499, 502, 504)
_MAKING: Final = (*_KEY, *_BODY, 409)
"""What lets others generate."""
_KEPT: Final = (*_KEY, 400, 408, 409, 413, 415)
"""What is made and kept, once for an idempotency key."""
_OPERATIONS: Final[dict[tuple[str, str], tuple[str, tuple[int, ...]]]] = {
    ("post", "/v1/chat/completions"): ("ChatCompletion", _GENERATING),
    ("get", "/v1/chat/completions/{response_id}"): ("ChatCompletionState", (*_KEY, 400, 404, 409)),
    ("delete", "/v1/chat/completions/{response_id}"): ("DeletedChatCompletion", (*_KEY, 404, 409)),
    ("post", "/v1/responses"): ("Response", _GENERATING),
    ("post", "/v1/completions"): ("Completion", _GENERATING),
    ("get", "/v1/completions/{response_id}"): ("CompletionState", (*_KEY, 400, 404, 409)),
    ("get", "/v1/responses/{response_id}"): ("Response", (*_KEY, 400, 404, 409)),
    ("delete", "/v1/responses/{response_id}"): ("DeletedResponse", (*_KEY, 404, 409)),
    ("get", "/v1/responses/{response_id}/input_items"): ("InputItems", (*_KEY, 400, 404)),
    ("post", "/v1/responses/{response_id}/cancel"): ("Response", (*_KEY, 404, 409)),
    ("post", "/v1/conversations"): ("Conversation", _KEPT),
    ("get", "/v1/conversations/{conversation_id}"): ("Conversation", (*_KEY, 404)),
    ("post", "/v1/conversations/{conversation_id}"): ("Conversation", (*_KEY, *_BODY)),
    ("delete", "/v1/conversations/{conversation_id}"): ("DeletedConversation", (*_KEY, 404)),
    ("get", "/v1/conversations/{conversation_id}/items"): ("ConversationItems", (*_KEY, 400, 404)),
    ("get", "/v1/conversations/{conversation_id}/items/{item_id}"): ("ConversationItem", (*_KEY, 400, 404)),
    ("get", "/api/conversations"): ("Conversations", (*_KEY, 400, 404)),
    ("post", "/api/conversations"): ("NamedConversation", _KEPT),
    ("get", "/api/conversations/{conversation_id}"): ("WholeConversation", (*_KEY, 400, 404)),
    ("post", "/api/conversations/{conversation_id}"): ("NamedConversation", (*_KEY, *_BODY)),
    ("delete", "/api/conversations/{conversation_id}"): ("DeletedConversation", (*_KEY, 404)),
    ("post", "/v1/embeddings"): ("Embeddings", _GENERATING),
    ("get", "/v1/embeddings/{response_id}"): ("EmbeddingsState", (*_KEY, 400, 404, 409)),
    ("get", "/api/jobs/{custom_id}"): ("Job", (*_KEY, 404, 409)),
    ("post", "/api/jobs/{custom_id}/cancel"): ("Job", (*_KEY, 404, 409)),
    ("get", "/v1/models"): ("Models", _ANY_KEY),
    ("get", "/v1/models/{model}"): ("Model", (*_ANY_KEY, 404)),
    ("get", "/v1/usage"): ("UsagePage", (*_KEY, 400, 404)),
    ("get", "/v1/costs"): ("CostsPage", (*_KEY, 400, 404)),
    ("get", "/api/usage/export"): ("", (*_KEY, 400, 404)),
    ("get", "/v1/organization/usage/completions"): ("CompletionsUsagePage", (*_KEY, 400)),
    ("get", "/v1/organization/usage/embeddings"): ("EmbeddingsUsagePage", (*_KEY, 400)),
    ("get", "/v1/organization/costs"): ("OrganizationCostsPage", (*_KEY, 400)),
    ("post", "/v1/messages"): ("Message", _GENERATING),
    ("get", "/v1/messages/{response_id}"): ("MessageState", (*_KEY, 400, 404, 409)),
    ("post", "/v1/messages/count_tokens"): ("MessageTokens", (*_KEY, *_BODY)),
    ("post", "/tokenize"): ("Tokens", (*_KEY, *_BODY)),
    ("post", "/detokenize"): ("Prompt", (*_KEY, *_BODY)),
    ("get", "/api/operations"): ("OperationsNow", _KEY),
    ("post", "/v1/tokens"): ("Token", (*_KEY, 400, 408, 413, 415)),
    ("post", "/v1/files"): ("File", (*_KEY, 400, 408, 413, 415)),
    ("get", "/v1/files"): ("Files", (*_KEY, 400)),
    ("get", "/v1/files/{file_id}"): ("File", (*_KEY, 404)),
    ("delete", "/v1/files/{file_id}"): ("DeletedFile", (*_KEY, 404, 409)),
    ("get", "/v1/files/{file_id}/content"): ("", (*_KEY, 404)),
    ("post", "/v1/batches"): ("Batch", _MAKING),
    ("get", "/v1/batches"): ("Batches", (*_KEY, 400)),
    ("get", "/v1/batches/{batch_id}"): ("Batch", (*_KEY, 404)),
    ("post", "/v1/batches/{batch_id}/cancel"): ("Batch", (*_KEY, 404, 409)),
}
"""What asks for a key: the answer's schema (none: bytes), and how it may be refused."""
_IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key", "in": "header", "required": False,
    "description": "Sent again with the same body within a day, the same response, batch or conversation answers it.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}  # fmt: skip
_OPEN: Final[dict[str, dict[str, Any]]] = {
    "/healthz": {"200": {"description": "It lives.", "content": _PLAIN}},
    "/readyz": {
        "200": {"description": "Requests can be accepted.", "content": _PLAIN},
        "503": {"description": "Why they cannot.", "content": _PLAIN},
    },
    "/health": {
        "200": {"description": "Requests can be accepted.", "content": _PLAIN},
        "503": {"description": "Why they cannot.", "content": _PLAIN},
    },
    "/version": {"200": {"description": "The release.", "content": {"application/json": {"schema": _ref("Version")}}}},
}
_FORMATS: Final = ("chat/completions", "completions", "messages", "responses")
_BY_ID: Final = tuple(f"/v1/{path}/{{response_id}}" for path in _FORMATS)
_STREAMS: Final = (*(f"/v1/{path}" for path in _FORMATS), *_BY_ID)


def _answers(method: str, path: str, schema: str, refusals: tuple[int, ...]) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(schema)}} if schema else _FILES.get(path, _BYTES)
    streams = path in _STREAMS and method != "delete"
    if streams:
        content["text/event-stream"] = {"schema": _EVENT}
    answers: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    if streams and path in _BY_ID:
        answers["204"] = {"description": "With `stream=true`: everything has been seen."}
    shape = "MessageError" if path.startswith("/v1/messages") else "Error"
    error = {"application/json": {"schema": _ref(shape)}}
    for status in sorted(refusals):
        answers[str(status)] = {"description": _STATUSES[status], "content": error}
    return answers


def _bodies() -> dict[str, Any]:
    template = "#/components/schemas/{model}"
    bodies = {
        "ChatBody": chat_schema(template),
        "ResponsesBody": responses_schema(template),
        "CompletionBody": completion_schema(template),
        "EmbeddingsBody": embeddings_schema(template),
        **messages_schemas(template),
        **token_schemas(template),
        "TokenBody": token_body_schema(template),
        "BatchBody": batch_body_schema(template),
        **conversation_schemas(template),
        "OperationsNow": operations_schema(template),
    }
    parts = {name: part for body in bodies.values() for name, part in body.pop("$defs", {}).items()}
    return {**parts, **bodies}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Of a parameter, which is left out where nothing is meant: a query has no null."""
    kept = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    about = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**about, **kept[0]} if len(kept) == 1 else schema


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, routes=app.routes, summary="LLMs as a streaming dataflow on Kafka."
        )
        components = document.setdefault("components", {})
        # FastAPI's own are of its 422, which nobody is answered.
        components["schemas"] = {**_bodies(), **_SCHEMAS}
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = _without_null(parameter["schema"])
                if path in _OPEN:
                    operation["responses"] = _OPEN[path]
                else:
                    schema, refusals = _OPERATIONS[method, path]
                    if refusals in (_GENERATING, _MAKING, _KEPT):
                        operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
                    operation["responses"] = _answers(method, path, schema, refusals)
                    operation["security"] = [{"bearer": []}, {"x_api_key": []}]
        app.openapi_schema = document
    return app.openapi_schema
