"""The JSON schema of a chat's body, for those who make a client of it: what is honoured, and what else is accepted."""

from typing import Any

from streams.dialects.openai_chat import ChatBody
from streams.dialects.openai_parameters import HINTS, NOT_OFFERED

_TYPES: dict[type, str] = {str: "string", dict: "object", list: "array"}


def chat_schema(ref_template: str) -> dict[str, Any]:
    """With `$defs`; references to them are made by `ref_template`."""
    schema = ChatBody.model_json_schema(ref_template=ref_template)
    properties = schema["properties"]
    for name in properties.keys() - set(schema["required"]):
        properties[name] = _nullable(properties[name])
    for name, kind in HINTS.items():
        properties[name] = {"type": [_TYPES[kind], "null"], "description": "Accepted, and of no effect."}
    for name, row in NOT_OFFERED.items():
        properties[name] = {"enum": [None, *row.asks_for_nothing], "description": f"Not offered: {row.why}."}
    return schema


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if {"type": "null"} in schema.get("anyOf", ()):
        return schema
    about: dict[str, Any] = {name: schema.pop(name) for name in ("title", "description", "default") if name in schema}
    return {**about, "anyOf": [*(schema["anyOf"] if set(schema) == {"anyOf"} else [schema]), {"type": "null"}]}
