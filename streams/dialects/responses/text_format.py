"""In which format an answer is to be, as the Responses API has it: text, any JSON object, or what fits a schema."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.base import is_absent
from schemas.request import MAX_TEXT_CHARS
from schemas.structure import StructuredOutputs
from streams.dialects.fields import WIRE, asked, invalid, unsupported, validated
from streams.dialects.responses.parameters import NOT_OFFERED_IN_TEXT
from streams.dialects.structured import MAX_NAME_CHARS, structure_by_schema

_FORMATS = ("text", "json_object", "json_schema")


class TextFormat(BaseModel):
    """What stands beside `type` is of `json_schema`."""

    model_config = ConfigDict(**WIRE, serialize_by_alias=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = Field(
        default=None, min_length=1, max_length=MAX_NAME_CHARS, exclude_if=is_absent, description="Of no effect."
    )
    description: str | None = Field(
        default=None, max_length=MAX_TEXT_CHARS, exclude_if=is_absent, description="Of no effect."
    )
    definition: dict[str, Any] | None = Field(default=None, alias="schema", exclude_if=is_absent)
    strict: bool | None = Field(
        default=None, exclude_if=is_absent, description="An answer is bound to its schema in any case."
    )


class TextConfig(BaseModel):
    model_config = WIRE

    format: TextFormat = TextFormat()


def asked_text(text: object) -> object:
    """What `text` of a body asks for, each part validated; what is no object is left to validation."""
    if not isinstance(text, dict):
        return text
    left = asked(TextConfig, text, NOT_OFFERED_IN_TEXT, path="text.")
    if isinstance(form := left.get("format"), dict):
        if isinstance(kind := form.get("type"), str) and kind not in _FORMATS:
            raise unsupported("text.format.type")
        path = "text.format"
        left["format"] = validated(TextFormat, asked(TextFormat, form, path=f"{path}."), path)
    return left


def structure_of(form: TextFormat) -> StructuredOutputs | None:
    """What the format binds an answer to. Raises RequestError naming the field that is missing, or is too much."""
    if form.type == "json_schema":
        for name, value in (("name", form.name), ("schema", form.definition)):
            if value is None:
                raise invalid(f"text.format.{name}", "Field required.")
        return structure_by_schema(form.definition, "text.format.schema")
    for name, value in (("name", form.name), ("schema", form.definition)):
        if value is not None:
            raise invalid(f"text.format.{name}", "Only a format of type json_schema has one.")
    return StructuredOutputs(json_object=True) if form.type == "json_object" else None
