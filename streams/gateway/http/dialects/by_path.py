"""In which format a path is answered, errors included."""

from typing import Any, Final

from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.messages import MESSAGES
from streams.gateway.http.dialects.port import Dialect
from streams.gateway.http.dialects.responses import RESPONSES

_BY_PREFIX: Final[tuple[tuple[str, Dialect[Any]], ...]] = (("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES))
"""The first that fits."""


def dialect_of(path: str) -> Dialect[Any]:
    """OpenAI's where nothing else is said: also of paths that nobody serves."""
    return next((dialect for prefix, dialect in _BY_PREFIX if path.startswith(prefix)), CHAT_COMPLETIONS)


def id_headers_of(path: str) -> tuple[bytes, ...]:
    """Where an answer's id stands: Anthropic's clients look for a name of their own."""
    return (b"x-request-id", b"request-id") if dialect_of(path) is MESSAGES else (b"x-request-id",)
