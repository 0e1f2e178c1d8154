"""What reads an answer token by token, and which answers are read like that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gpu_consumers.engines.port import EngineRequest
from schemas.generated import Kind


class Piece(NamedTuple):
    """Text that a token completes. `call` counts the calls of a choice from 0 on; it is 0 where `kind` is no tool's."""

    kind: Kind
    call: int
    text: str


class TokenParser(Protocol):
    """Of one choice. The same tokens give the same pieces, so its state need not be kept: it is made again from them.

    The pieces of a call begin with its name. What stands between them and says nothing (markers) is in none.
    """

    def feed(self, token_id: int, text: str, *, is_last: bool) -> Sequence[Piece]:
        """The next token and what it adds to the text. With the last one it tells what it has withheld."""


@dataclass(frozen=True, slots=True)
class ParserNames:
    """A pool's parsers, by the names that users of `vllm serve` know; empty: none."""

    tool: str = ""
    reasoning: str = ""

    def finds_calls(self, request: EngineRequest) -> bool:
        """Whether calls are looked for in its answer."""
        choice = request.tool_choice
        return bool(self.tool and request.tools) and (choice is None or choice.mode != "none")

    def schema_beside_calls(self, request: EngineRequest) -> Mapping[str, Any] | None:
        """Of an answer that is bound to be calls or JSON, as it likes: of the JSON. None for all others."""
        choice, structure = request.tool_choice, request.sampling.structured_outputs
        is_free = choice is None or choice.mode == "auto"
        return structure.value_schema if structure is not None and is_free and self.finds_calls(request) else None

    def are_needed(self, request: EngineRequest) -> bool:
        """Whether its answer is to be read token by token at all."""
        return (bool(self.reasoning) and request.is_turn) or self.finds_calls(request)
