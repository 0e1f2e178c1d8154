"""Decoding with a reason: why a record cannot be read, in words that go to dead letters."""

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from schemas.base import SCHEMA_VERSION

T = TypeVar("T")
_Model = TypeVar("_Model", bound=BaseModel)
DecodeReason = Literal["not_json", "unknown_version", "unknown_type", "invalid"]


class Undecodable(Exception):
    """A record that no reader of this version can use. `detail` names fields, never values."""

    def __init__(self, reason: DecodeReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: DecodeReason = reason
        self.detail = detail[:2_000]


def decode(schema: type[T] | TypeAdapter[T], value: bytes | None) -> T:
    """The record in `value`, or `Undecodable` with the reason."""
    if value is None:
        raise Undecodable("not_json", "the record has no value")
    try:
        if isinstance(schema, TypeAdapter):
            return schema.validate_json(value)
        if issubclass(schema, BaseModel):
            return schema.model_validate_json(value)
    except ValidationError as error:
        raise _explain(error, value) from None
    raise TypeError(f"{schema} is no schema")


def decode_object(schema: type[_Model], record: Mapping[str, Any]) -> _Model:
    """The same of a record whose JSON was read already."""
    try:
        return schema.model_validate(record)
    except ValidationError as error:
        raise _explain(error, record) from None


def _explain(error: ValidationError, record: bytes | Mapping[str, Any]) -> Undecodable:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    if errors[0]["type"] == "json_invalid":
        return Undecodable("not_json", errors[0]["msg"])
    found = _peek(record) if isinstance(record, bytes) else record
    version = found.get("schema_version")
    if version is not None and version != SCHEMA_VERSION:
        return Undecodable("unknown_version", f"schema_version {str(version)[:40]} is not {SCHEMA_VERSION}")
    if errors[0]["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return Undecodable("unknown_type", f"type {str(found.get('type'))[:40]}")
    detail = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in errors[:5])
    return Undecodable("invalid", detail)


def _peek(value: bytes) -> Mapping[str, Any]:
    try:
        record = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
