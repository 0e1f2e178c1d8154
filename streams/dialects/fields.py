"""Reading a body field by field, whoever's client sent it: what asks for nothing, what is refused by name, and errors
that name a path.

Work is bounded: the first field that is wrong is named, and nothing is looked at behind it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.endings import EndingCode
from schemas.request import MAX_CACHE_KEY_CHARS
from streams.dialects.neutral import RequestError

Location = Sequence[int | str]
_NOTHING: Mapping[str, Any] = {}
_JSON_NAMES: dict[type, str] = {str: "a string", int: "an integer", dict: "an object", list: "a list"}
_Body = TypeVar("_Body", bound=BaseModel)
WIRE = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
MayFallBack = Annotated[
    bool,
    Field(
        description="Whether a smaller model may answer where this one has no room, if the organisation's policy has"
        " it: an extension."
    ),
]
PromptCacheKey = Annotated[
    str | None,
    Field(
        max_length=MAX_CACHE_KEY_CHARS,
        description="One for whatever begins alike: it goes where that has been, as far as load lets it.",
    ),
]
MAX_PARTS = 4_096
"""Of all messages together."""


@dataclass(frozen=True, slots=True)
class NotOffered:
    """`asks_for_nothing`: the values, beside null, that are accepted. `why` follows the name in the refusal."""

    asks_for_nothing: tuple[Any, ...]
    why: str


def list_of(what: str, value: object) -> object:
    """Of what may also be one string: pydantic's own words would ask for a list alone."""
    if isinstance(value, list):
        return value
    raise ValueError(f"Input should be a string or a list of {what}")


def asked(
    kind: type[BaseModel],
    given: Mapping[str, Any],
    not_offered: Mapping[str, NotOffered] = _NOTHING,
    hints: Mapping[str, type] = _NOTHING,
    *,
    path: str = "",
) -> dict[str, Any]:
    """The fields that ask for something: no more of them than `kind` has.

    Raises RequestError for the first in the table's order that is not offered, and for one that nobody knows where
    there are more than `kind` has. `path` is what stands before a field's name.
    """
    left = {name: value for name, value in given.items() if value is not None}
    for name, rule in not_offered.items():
        if name in left:
            value = left.pop(name)
            if not any(_is_same(value, neutral) for neutral in rule.asks_for_nothing):
                raise unsupported(f"{path}{name}", rule.why)
    for name, json_type in hints.items():
        if not isinstance(left.pop(name, None), json_type | None):
            raise invalid(f"{path}{name}", f"Input should be {_JSON_NAMES[json_type]}.")
    if len(left) > len(kind.model_fields):
        # Validation would list all that it does not know, to name one.
        known = {field.alias or name for name, field in kind.model_fields.items()}
        raise unsupported(path + next(name for name in left if name not in known))
    return left


def bracketed(path: str, location: Location) -> str:
    """As OpenAI's clients write it: `messages[0].content`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]")
    return f"{path}{''.join(parts)}".removeprefix(".")[:200]


def dotted(path: str, location: Location) -> str:
    """As Anthropic's clients write it: `messages.0.content`."""
    return ".".join((*([path] if path else []), *(str(part) for part in location if part != "[key]")))[:200]


def validated(
    kind: type[_Body], given: object, path: str = "", *, write: Callable[[str, Location], str] = bracketed
) -> _Body:
    """Raises RequestError naming the field as `write` does. `path` is what stands before `given`'s own."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explain(error, path, write) from None


def check_length(path: str, elements: list[Any], most: int) -> None:
    """Raises RequestError."""
    if len(elements) > most:
        raise invalid(path, f"List should have at most {most} items.")


def unsupported(path: str, why: str = "") -> RequestError:
    param = path[:200]
    return RequestError(EndingCode.UNSUPPORTED_PARAMETER, f"{param} is not supported{': ' if why else ''}{why}.", param)


def invalid(path: str, why: str) -> RequestError:
    param = path[:200]
    return RequestError(EndingCode.INVALID_REQUEST, f"{param}: {why}", param)


def _is_same(value: object, neutral: object) -> bool:
    """As JSON: `True == 1` in Python alone."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _explain(error: ValidationError, path: str, write: Callable[[str, Location], str]) -> RequestError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = write(path, first["loc"])
    if first["type"] == "extra_forbidden":
        return unsupported(param)
    return invalid(param, f"{first['msg'].removeprefix('Value error, ')}.")  # pydantic's, before a validator's words
