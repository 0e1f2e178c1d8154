"""What a tenant takes neither in prompts nor in answers, as it stands in the tenants file."""

from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from schemas.hazards import Hazard
from schemas.policy import DEFAULT_MODE, OutputMode

MAX_OUTPUT_DENY_CHARS = 500_000
"""They travel in one record: at six bytes a character still below a topic's largest."""
MAX_PATTERNS = 100


class _Categorised(BaseModel):
    """One text, written alone or, with what it is about, as a table. Without a category it is written alone again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    category: Hazard | None = Field(default=None, description="Told in verdicts.")

    @model_validator(mode="before")
    @classmethod
    def _may_be_the_text_alone(cls, given: Any) -> Any:
        return {_text_field(cls): given} if isinstance(given, str) else given

    @model_serializer(mode="wrap")
    def _written_alone(self, serialize: SerializerFunctionWrapHandler) -> Any:
        name = _text_field(type(self))
        if self.category is None:
            return getattr(self, name)
        return {name: getattr(self, name), "category": self.category.value}


def _text_field(kind: type[_Categorised]) -> str:
    [name] = kind.model_fields.keys() - {"category"}
    return name


class DenyPhrase(_Categorised):
    phrase: str


class DenyPattern(_Categorised):
    """A regular expression of RE2, held against the text as it was sent."""

    pattern: str

    @field_validator("pattern")
    @classmethod
    def _is_one(cls, pattern: str) -> str:
        from streams.deny_patterns import compiled  # loads RE2, for which most tenants have no use

        compiled(pattern)
        return pattern


class SafetyPolicy(BaseModel):
    """Deny phrases match normalised text (`agents.safety.phrases`); an allow phrase lifts denials inside it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = Field(default=1, ge=1, lt=2**32, description="As wide as usage has a column for it.")
    prompt_deny: list[DenyPhrase] = Field(default_factory=list, max_length=10_000)
    prompt_deny_patterns: list[DenyPattern] = Field(default_factory=list, max_length=MAX_PATTERNS)
    prompt_allow: list[str] = Field(default_factory=list, max_length=10_000)
    see_through: bool = Field(
        default=True, description="Whether deny phrases are looked for in disguise, too (`agents.safety.disguises`)."
    )
    output_deny: list[str] = Field(default_factory=list, max_length=10_000)
    output_mode: OutputMode = Field(
        default=DEFAULT_MODE,
        description="What is seen of an answer before it was looked at: `hold_back`, nothing of a denied phrase;"
        " `parallel`, all but what shows that there is one, without any wait; `full_review`, nothing before all of it"
        " was.",
    )

    @field_validator("prompt_deny_patterns")
    @classmethod
    def _compile_together(cls, patterns: list[DenyPattern]) -> list[DenyPattern]:
        if patterns:
            from streams.deny_patterns import DenyPatterns

            DenyPatterns([each.pattern for each in patterns])
        return patterns

    @field_validator("output_deny")
    @classmethod
    def _fits_a_record(cls, phrases: list[str]) -> list[str]:
        if sum(map(len, phrases)) > MAX_OUTPUT_DENY_CHARS:
            raise ValueError(f"more than {MAX_OUTPUT_DENY_CHARS} characters together")
        return phrases

    @property
    def asks_anything_of_prompts(self) -> bool:
        return bool(self.prompt_deny or self.prompt_deny_patterns)
