"""What an answer is bound to, where a client asks for more than text."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.base import is_absent

MAX_REGEX_CHARS = 4_096
MAX_GRAMMAR_CHARS = 16_384
MAX_CHOICES = 1_000
MAX_CHOICE_CHARS = 1_000


def _without_schemas(grammar: str) -> str:
    """Guidance takes them within a grammar too, where nobody has looked how large they are."""
    if "%json" in grammar or grammar.lstrip().startswith("{"):
        raise ValueError("A grammar should hold no JSON Schema")
    return grammar


Regex = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REGEX_CHARS, pattern=r"^[^\x00]*$")]
Choices = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHOICE_CHARS)]],
    Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
]
Grammar = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARS, pattern=r"\S"),
    AfterValidator(_without_schemas),
]


class StructuredOutputs(BaseModel):
    """Exactly one of these, by the names that vLLM gives them.

    How large a schema may be is for those to say who take it from a client: `streams.dialects.schema_bounds`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, serialize_by_alias=True)

    json_schema: dict[str, Any] | None = Field(default=None, alias="json", exclude_if=is_absent)
    json_object: Literal[True] | None = Field(default=None, exclude_if=is_absent, description="Any JSON object.")
    regex: Regex | None = Field(default=None, exclude_if=is_absent)
    choice: Choices | None = Field(default=None, exclude_if=is_absent, description="One of these texts.")
    grammar: Grammar | None = Field(default=None, exclude_if=is_absent, description="In Lark's or GBNF's notation.")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise ValueError("Exactly one of json, json_object, regex, choice and grammar should be given")
        return self

    @property
    def value_schema(self) -> dict[str, Any] | None:
        """Of an answer that is JSON; null where it is other text."""
        return {"type": "object"} if self.json_object else self.json_schema
