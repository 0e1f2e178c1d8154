"""Answers that are bound to a structure, as clients of OpenAI and of vLLM ask for them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from schemas.request import MAX_TEXT_CHARS, Sampling, ToolChoice
from schemas.structure import Choices, Grammar, Regex, StructuredOutputs
from streams.dialects.fields import WIRE, asked, invalid, unsupported
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import RequestError
from streams.dialects.openai_parameters import NOT_OFFERED_IN_STRUCTURED_OUTPUTS
from streams.dialects.sampling_body import SamplingBody
from streams.dialects.schema_bounds import MAX_CHARS, check_schema

MAX_NAME_CHARS = 256
_GUIDED = ("json", "regex", "choice", "grammar")
_FIELDS = ("response_format", "structured_outputs", *(f"guided_{kind}" for kind in _GUIDED))
_BREAKING = ("ignore_eos", "min_tokens")
"""They write on behind what is complete."""


def _bounded(schema: object) -> object:
    if isinstance(schema, str):
        schema = _read(schema)
    if isinstance(schema, dict):
        check_schema(schema)
    return schema


def _read(text: str) -> object:
    if len(text) > MAX_CHARS:
        raise ValueError(f"A schema should have at most {MAX_CHARS:,} characters")
    try:
        return parse_json_object(text)
    except RequestError:
        raise ValueError("A schema that is a string should hold a JSON object") from None


JsonSchema = Annotated[dict[str, Any], BeforeValidator(_bounded)]
"""Within the bounds of `streams.dialects.schema_bounds`."""
JsonSchemaOrText = Annotated[dict[str, Any], BeforeValidator(_bounded, json_schema_input_type=dict[str, Any] | str)]


class NamedSchema(BaseModel):
    model_config = WIRE

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS, description="Accepted, and of no effect.")
    description: str | None = Field(
        default=None, max_length=MAX_TEXT_CHARS, description="Accepted, and of no effect: the model is not shown it."
    )
    definition: JsonSchema = Field(alias="schema")
    strict: bool | None = Field(default=None, description="An answer is bound to its schema in any case.")


class ResponseFormat(BaseModel):
    model_config = WIRE

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = Field(default=None, description="Of the type of that name.")


class StructuredOutputsBody(StructuredOutputs):
    """As `StructuredOutputs`; a schema may be a string of JSON, and is bounded."""

    json_schema: JsonSchemaOrText | None = Field(default=None, alias="json")

    @property
    def neutral(self) -> StructuredOutputs:
        return StructuredOutputs.model_validate(self.model_dump())


class StructuredBody(SamplingBody):
    """What bodies have in common whose answers may be bound to a structure, by any of these."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsBody | None = None
    guided_json: JsonSchemaOrText | None = None
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None


def asked_structure(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` without what asks for nothing within `response_format` and `structured_outputs`.

    Raises RequestError as `openai_body.asked`.
    """
    left = dict(given)
    if isinstance(form := left.get("response_format"), dict):
        left["response_format"] = form = asked(ResponseFormat, form, path="response_format.")
        if isinstance(named := form.get("json_schema"), dict):
            form["json_schema"] = asked(NamedSchema, named, path="response_format.json_schema.")
    if "structured_outputs" in left:
        left["structured_outputs"] = asked_outputs(left["structured_outputs"])
    return left


def asked_outputs(outputs: object) -> object:
    """vLLM's `structured_outputs`. Raises RequestError as `asked_structure`."""
    if not isinstance(outputs, dict):
        return outputs
    return asked(StructuredOutputsBody, outputs, NOT_OFFERED_IN_STRUCTURED_OUTPUTS, path="structured_outputs.")


def structure_of(body: StructuredBody) -> StructuredOutputs | None:
    """What `body` binds its answer to. Raises RequestError naming the field that cannot stand beside another one."""
    return only_structure(_found(body), body)


def field_of_structure(body: StructuredBody) -> str | None:
    """Which of its fields binds its answer, as far as one does."""
    # Before another one there may be a `response_format` that asks for text.
    return next((name for name in reversed(_FIELDS) if getattr(body, name) is not None), None)


def only_structure(found: Mapping[str, StructuredOutputs], sampling: Sampling) -> StructuredOutputs | None:
    """Of those that the fields of a body ask for. Raises RequestError as `structure_of`."""
    if not found:
        return None
    for name in list(found)[1:]:
        raise invalid(name, f"An answer cannot be bound by {next(iter(found))} as well.")
    for name in _BREAKING:
        if getattr(sampling, name):
            raise invalid(name, f"{next(iter(found))} says where the answer ends.")
    return next(iter(found.values()))


def structure_beside_tools(structure: StructuredOutputs | None, choice: ToolChoice | None) -> StructuredOutputs | None:
    """What of it binds the answer. It is of the answer's text, of which a call that must be made leaves none.

    Raises RequestError where the answer may call tools and its text is not to be JSON, which no call is taken for.
    """
    if structure is None or choice is None or choice.mode == "none":
        return structure
    if structure.value_schema is None:
        raise unsupported("tools", "an answer that may call some is bound to JSON or to nothing")
    return structure if choice.mode == "auto" else None


def structure_by_schema(schema: object, path: str) -> StructuredOutputs:
    """Of a schema that stands at `path` of a body. Raises RequestError naming it."""
    if not isinstance(schema, dict):
        raise invalid(path, "Input should be a valid dictionary.")
    try:
        check_schema(schema)
    except ValueError as error:
        raise invalid(path, f"{error}.") from None
    return StructuredOutputs(json=schema)


def _found(body: StructuredBody) -> dict[str, StructuredOutputs]:
    """By the field that asks for it."""
    found: dict[str, StructuredOutputs] = {}
    if (form := _of_format(body.response_format)) is not None:
        found["response_format"] = form
    if (outputs := body.structured_outputs) is not None:
        found["structured_outputs"] = outputs.neutral
    for kind in _GUIDED:
        if (value := getattr(body, f"guided_{kind}")) is not None:
            found[f"guided_{kind}"] = StructuredOutputs.model_validate({kind: value})
    return found


def _of_format(form: ResponseFormat | None) -> StructuredOutputs | None:
    if form is None:
        return None
    if (form.type == "json_schema") != (form.json_schema is not None):
        why = "Field required" if form.json_schema is None else "Only a format of type json_schema has one"
        raise invalid("response_format.json_schema", f"{why}.")
    if form.json_schema is not None:
        return StructuredOutputs(json=form.json_schema.definition)
    return StructuredOutputs(json_object=True) if form.type == "json_object" else None
