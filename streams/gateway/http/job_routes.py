"""Producers' jobs by their `custom_id`: how each stands, and its cancel."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.convertors import StringConvertor, register_url_convertor

from schemas.endings import ENDINGS
from streams.dialects.answer_json import json_bytes
from streams.dialects.names import OF_CHATS, OF_ENDPOINTS
from streams.dialects.openai_completion import usage_object
from streams.dialects.openai_error import terminal_error
from streams.dialects.responses.objects import status_of
from streams.directory import KeyScope
from streams.gateway.http.answers import json_response
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Snapshot
from streams.gateway.service.service import Gateway


def job_object(custom_id: str, snapshot: Snapshot) -> dict[str, Any]:
    """Nothing of what it says: that stands on its results topic."""
    started, terminal = snapshot.started, snapshot.terminal
    failed = terminal is not None and ENDINGS[terminal.code].is_error
    names = OF_CHATS if started is None else OF_ENDPOINTS.get(started.endpoint, {})
    return {
        "object": "job",
        "custom_id": custom_id,
        "id": snapshot.response_id,
        "status": status_of(terminal) if terminal else snapshot.running_status,
        "code": terminal.code.value if terminal else None,
        "error": terminal_error(terminal, names)["error"] if terminal and failed else None,
        "model": snapshot.model,
        "accepted_at_ms": started.accepted_at_ms if started else None,
        "expires_at_ms": started.deadline_ms if started else None,
        "ended_at_ms": terminal.ended_at_ms if terminal else None,
        "usage": usage_object(terminal.usage) if terminal else None,
    }


class _Name(StringConvertor):
    """A `custom_id` may have any characters, slashes and ends of lines too."""

    regex = r"(?s:.+)"


class _NameAtTheEnd(_Name):
    """Behind which no `/cancel` may stand: that is the other path."""

    regex = r"(?s:(?!.*/cancel\Z).+)"


register_url_convertor("custom_id", _Name())
register_url_convertor("custom_id_at_the_end", _NameAtTheEnd())


def add_job_routes(app: FastAPI, gateway: Gateway) -> None:
    def permitted(request: Request) -> Principal:
        principal = gateway.permitted(api_key_of(request.headers), KeyScope.RESPONSES)
        principal.require_key("jobs")
        return principal

    @app.get("/api/jobs/{custom_id:custom_id_at_the_end}", tags=["jobs"])
    async def get_job(request: Request, custom_id: str) -> Response:
        """How a job of your producers stands, by its `custom_id`; what it says is on your results topic alone."""
        return _told(custom_id, await gateway.jobs.look_up(permitted(request), custom_id))

    @app.post("/api/jobs/{custom_id:custom_id}/cancel", tags=["jobs"])
    async def cancel_job(request: Request, custom_id: str) -> Response:
        """Ends a job that was admitted. Idempotent: what has ended stays as it ended."""
        return _told(custom_id, await gateway.jobs.cancel(permitted(request), custom_id))


def _told(custom_id: str, snapshot: Snapshot) -> Response:
    return json_response(json_bytes(job_object(custom_id, snapshot)), {"x-request-id": snapshot.response_id})
