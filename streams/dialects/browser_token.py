"""The body of `POST /v1/tokens`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from streams.dialects.fields import WIRE, asked, validated
from streams.dialects.openai_schema import body_schema
from streams.directory import KeyScope

# From JSON they come as texts, of which strict reading makes nothing else.
_Scope = Annotated[KeyScope, Field(strict=False)]


class TokenBody(BaseModel):
    model_config = WIRE

    expires_in_s: int = Field(default=600, ge=60, le=3_600)
    scopes: list[_Scope] | None = Field(
        default=None, min_length=1, max_length=64, description="Some of those that the key has; default: all."
    )
    user: str | None = Field(
        default=None, min_length=1, max_length=512,
        description="Whom it is for, kept only as a pseudonym: its conversations are that user's.",
    )  # fmt: skip


def parse_token_body(body: Mapping[str, Any]) -> TokenBody:
    """Raises RequestError naming the field."""
    return validated(TokenBody, asked(TokenBody, body))


def token_body_schema(ref_template: str) -> dict[str, Any]:
    return body_schema(TokenBody, ref_template)
