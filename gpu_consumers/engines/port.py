"""The port to an inference engine: over vLLM in `vllm_engine` and `vllm_pooling`, without weights in `simulated` and
`simulated_pooling`.

Duties of every implementation, held by one contract suite: unless it is aborted, a request ends with one `error`, or
with exactly one `finish` of each of its choices that has not ended before, whose deltas arrive in order; after `abort`
returns, no delta of that request is delivered; the text of all deltas is whole characters; callbacks run on the event
loop that called `start`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, Self

from schemas.generated import FinishReason, Kind, StoppedBy
from schemas.logprobs import RowLogprobs
from schemas.request import Sampling, Tool, ToolChoice


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is said already of an answer that is to be continued: by choice its tokens, how many characters of their
    text, and whether it has ended.
    """

    token_ids: Sequence[Sequence[int]]
    chars: Sequence[int]
    ended: frozenset[int] = frozenset()

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids))


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """`request_id` is unique for the life of the engine; `priority` is lower for what goes first. `tools` are told to
    the model by the prompt already: here they say what to look for in the answer, and by what to bind it. The answer
    is a turn of a chat, or what follows on a text, which holds neither calls nor reasoning. As many answers as
    `choices` are generated to the same prompt, apart from each other; `max_tokens` bounds each.

    With `input_ends` nothing is generated: each part of the prompt that ends there becomes a vector, cut to
    `dimensions`. These are given in their order once all are there, as the tokens of the one choice, of kind
    `embedding`.

    With `accepted` it goes on where that leaves off, and gives what lies beyond: as if all had been generated here, and
    as much of it held back. `max_tokens` still bounds the whole of each choice.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: Sampling
    max_tokens: int
    priority: int = 0
    cache_salt: str = ""
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    is_turn: bool = True
    choices: int = 1
    input_ends: Sequence[int] = ()
    dimensions: int | None = None
    accepted: Accepted | None = None

    @property
    def open_choices(self) -> list[int]:
        """Those of which there is something to say."""
        ended = () if self.accepted is None else self.accepted.ended
        return [choice for choice in range(self.choices) if choice not in ended]

    @property
    def inputs(self) -> list[list[int]]:
        """Of what is embedded: the tokens of each."""
        return [self.prompt_token_ids[begin:end] for begin, end in pairwise((0, *self.input_ends))]


@dataclass(slots=True)
class EngineDelta:
    """What one engine step added to one choice of one request: one of several, if that is of several kinds or calls.

    `text_ends[k]` is the length of `text` after token k. `error` ends the request, with the reason;
    `refused_param` names the parameter, or the input, that the engine cannot honour, and the client is told the reason;
    `parser_error` is the type of what the answer's parser failed with. `stopped_by`, beside `finish`, is the request's
    stop string or token that made the choice end. `is_not_continued`, beside `error`: what was accepted of it cannot be
    gone on with here, and the client is told the reason.
    """

    request_id: str
    choice: int
    token_ids: list[int]
    text: str
    text_ends: list[int]
    finish: FinishReason = ""
    cached_tokens: int = 0
    error: str | None = None
    refused_param: str | None = None
    kind: Kind = "content"
    call: int = 0
    parser_error: str = ""
    logprobs: RowLogprobs = None
    stopped_by: StoppedBy = None
    is_not_continued: bool = False

    @classmethod
    def failure(
        cls, request_id: str, why: str, refused_param: str | None = None, *, is_not_continued: bool = False
    ) -> Self:
        """The end of a request, whatever its choices have got."""
        return cls(
            request_id, 0, [], "", [], error=why, refused_param=refused_param, is_not_continued=is_not_continued
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Requests in the batch, requests waiting for it, and KV-cache blocks that requests hold: a block that several
    share is counted once, and one that is only kept for who may come not at all.

    `block_tokens`: so many tokens of one request a block holds; 0: the engine's memory is not counted in tokens.
    `shares_prefixes`: prompts that begin alike share the blocks of their beginning. `preemptions`, since its start: how
    often something lost its blocks to others, to be computed again.
    """

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    block_tokens: int = 0
    shares_prefixes: bool = False
    preemptions: int = 0


class EngineDied(Exception):
    """The engine and everything in it is gone. It may be started again."""


class EngineMisconfigured(Exception):
    """No start of it helps: an argument is wrong. It begins with the argument's name, where that is known."""


OnStep = Callable[[list[EngineDelta]], None]
OnDied = Callable[[EngineDied], None]


class Engine(Protocol):
    @property
    def accepts_seed(self) -> bool: ...

    async def start(self, on_step: OnStep, on_died: OnDied) -> None:
        """Returns when requests can be submitted; again after a death. Raises EngineDied when it cannot start, and
        EngineMisconfigured where it never will.

        May be cancelled; what it has begun until then is ended by `close`.
        `on_step` gets the deltas of all requests of one step at once; none of a step that got something done which no
        delta tells of yet. `on_died` is called at most once per start; no
        delta follows it.
        """

    def submit(self, request: EngineRequest) -> None:
        """Never blocks. A request that the engine refuses gets a delta with `error`. Raises EngineDied when dead."""

    def abort(self, request_id: str) -> None:
        """Frees what the request holds within milliseconds. Unknown and ended requests are ignored."""

    async def probe(self) -> None:
        """Returns soon where the engine works, busy or not, and not where it hangs. Raises EngineDied when dead."""

    def kill(self, why: str) -> None:
        """Ends an engine that hangs, whatever it does: `on_died` is called. Does nothing when dead."""

    def stats(self) -> EngineStats:
        """As of its last step, at no cost. From its start on it tells how much memory there is."""

    async def close(self) -> None:
        """Stops without further callbacks; also before `start`, after a cancelled one, and twice.

        Takes seconds, not the time of a start, and leaves neither a process nor a thread behind.
        """
