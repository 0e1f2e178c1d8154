"""What admission may know of the world."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agents.admission.billed import Billing, unbounded
from agents.admission.brownout import Brownouts
from agents.admission.cancels import Cancels
from agents.admission.long_prompts import LongPrompts
from agents.admission.routing import QueueBound, WorkersView
from agents.quota.port import QuotaStore
from agents.safety.prompt_policies import PromptPolicies
from schemas.generated import Source
from schemas.request import Message, Tool
from streams.directory import ModelCatalog, TenantDirectory
from streams.ids import ResponseIds
from streams.price_list import PriceList
from streams.topics import Topics


class Tokenizer(Protocol):
    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id."""

    def encode_chat(self, messages: Sequence[Message], *, tools: Sequence[Tool], at_most: int) -> list[int]:
        """Raises jinja2.TemplateError for what the model's chat template does not take.

        Raises TooManyTokens where it is certain that there are more than `at_most`, before all is tokenised.
        """

    def encode_prompt(self, text: str, *, at_most: int) -> list[int]:
        """Of a text that is a whole prompt, in which no token is special. Raises TooManyTokens as `encode_chat`."""

    def readings(self, token_ids: Sequence[int]) -> Sequence[str]:
        """What they may be taken to say: a phrase is hidden by no special token among them."""


async def _nothing_kept(_source: Source) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Services:
    """Entrances and stages depend on the world through this alone."""

    topics: Topics
    request_secrets: Sequence[bytes]
    """Any of them proves a gateway's request."""
    pseudonym_secret: bytes
    ids: ResponseIds
    directory: TenantDirectory
    catalog: ModelCatalog
    tokenizers: Mapping[str, Tokenizer]
    """By canonical model name."""
    quota: QuotaStore
    workers: WorkersView
    queue_bound: QueueBound
    prompt_policies: PromptPolicies
    trust_window_ms: int
    clock_ms: Callable[[], int]
    prefix_load_excess: float
    """Of a pool's mean load: so much more may be at the worker that has had what begins alike."""
    prices: PriceList = field(default_factory=lambda: PriceList(are_read=True))
    brownout: Brownouts = field(default_factory=Brownouts)
    billing: Billing = field(default_factory=unbounded)
    cancels: Cancels = field(default_factory=lambda: Cancels(are_read=True))
    long_prompts: LongPrompts = field(default_factory=LongPrompts)
    max_moves: int = 0
    """So often a response is put into another pool before its first token."""
    read_source: Callable[[Source], Awaitable[bytes | None]] = field(default=_nothing_kept)
    """The value of a record; None: it is gone. Raises LogError."""
    on_hold: Callable[[str, float], None] = lambda _topic, _for_s: None
    """Told that records of a topic wait on purpose, for so many seconds. Called from any thread."""
