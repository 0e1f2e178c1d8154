"""Ports to who may do what (tenants) and what can be served (models, pools)."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal, Protocol, Self, get_args

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.request import MAX_WEIGHT, Dimensions, Lane
from streams.engine_args import vllm_arguments
from streams.safety_policy import SafetyPolicy

ParserName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.-]{0,64}$")]
PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,47}$")]
TenantId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,47}$")]
Tier = Literal["free", "paid", "premium"]
TIERS: tuple[Tier, ...] = get_args(Tier)
LOWEST_TIER = TIERS[0]
FALLS_BACK: dict[Tier, bool] = {"free": True, "paid": False, "premium": False}
"""Whether a smaller model may answer in the place of the one that was asked for, unless a tenant says otherwise."""


def _can_be_told(url: str) -> str:
    """Raises ValueError."""
    from streams.webhook_urls import webhook_url  # most processes know no such address, nor an HTTP client

    webhook_url(url)
    return url


WebhookUrl = Annotated[str, AfterValidator(_can_be_told)]
WebhookUrlOrNone = Annotated[str, AfterValidator(lambda url: url and _can_be_told(url))]


class Limits(BaseModel):
    """Per tenant. `0` would mean nothing at all, so every limit is at least 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: int = Field(default=6_000, ge=1, le=10**9)
    tokens_per_minute: int = Field(default=10_000_000, ge=1, le=10**12)
    concurrent_responses: int = Field(default=2_000, ge=1, le=10**6)
    concurrent_jobs: int = Field(
        default=2_000, ge=1, le=10**6, description="Of the batch lane: producers' jobs beyond it wait."
    )
    max_output_tokens: int = Field(default=4_096, ge=1, le=131_072)


class ScopedLimits(BaseModel):
    """Of one key or one model, within what its tenant may; None: no limit of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: int | None = Field(default=None, ge=1, le=10**9)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**12)
    concurrent_responses: int | None = Field(default=None, ge=1, le=10**6)
    concurrent_jobs: int | None = Field(default=None, ge=1, le=10**6, description="Of the batch lane.")

    @property
    def is_any(self) -> bool:
        return self != _NO_LIMITS


_NO_LIMITS = ScopedLimits()
Currency = Literal["USD", "EUR"]
MAX_BUDGET = Decimal(4_000_000)
"""A month. In nano-currency, with what may be held beside it, still exact as a double, as Redis' scripts have them."""


class Budget(BaseModel):
    """What may be spent in a month, by UTC, of what was accepted in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    amount: Decimal = Field(ge=0, le=MAX_BUDGET, decimal_places=9)
    currency: Currency = "USD"
    hard: bool = Field(default=True, description="Whether what might exceed it is refused. Else it only warns.")
    thresholds: list[Annotated[int, Field(ge=1, le=100)]] = Field(
        default=[50, 80, 100],
        max_length=16,
        description="In percent of it: an alert is written when so much is spent.",
    )


class KeyScope(StrEnum):
    """What a key may be used for."""

    RESPONSES = "responses"
    """To ask, embed and count tokens, and whatever is done with a response by its id."""
    USAGE = "usage"
    OPERATIONS = "operations"
    """To see how the whole deployment stands, whose work it may be."""


class Role(StrEnum):
    """Who a key is for."""

    USER = "user"
    ANALYST = "analyst"
    ADMIN = "admin"


SCOPES_OF_ROLE: dict[Role, frozenset[KeyScope]] = {
    Role.USER: frozenset({KeyScope.RESPONSES, KeyScope.USAGE}),
    Role.ANALYST: frozenset({KeyScope.USAGE}),
    Role.ADMIN: frozenset(KeyScope),
}
"""The most that a key may have. A new scope is an admin's, and whose it is said to be here."""


class _Key(BaseModel):
    """What all keys of a tenant have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_id: str = Field(min_length=1, max_length=64)
    project_id: str = Field(default="default", max_length=200)
    revoked: bool = False
    expires_at: AwareDatetime | None = Field(default=None, description="From then on it is refused. None: it lasts.")
    limits: ScopedLimits = ScopedLimits()
    budget: Budget | None = None

    def stands(self, now_ms: int) -> bool:
        """Whether it may be used at that Unix time."""
        return not self.revoked and (self.expires_at is None or now_ms < self.expires_at.timestamp() * 1_000)


class ApiKey(_Key):
    """`sha256` of the whole key string, hex; the key itself is stored nowhere."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    role: Role = Role.USER
    scopes: list[KeyScope] | None = Field(default=None, min_length=1, description="Fewer than its role has, if given.")

    @model_validator(mode="after")
    def _are_of_the_role(self) -> Self:
        if beyond := sorted({*(self.scopes or ())} - SCOPES_OF_ROLE[self.role]):
            raise ValueError(f"scopes: {', '.join(beyond)} is not of the role {self.role.value!r}")
        return self

    @property
    def granted(self) -> frozenset[KeyScope]:
        """All that it may be used for."""
        return SCOPES_OF_ROLE[self.role] if self.scopes is None else frozenset(self.scopes)


class ProducerKey(_Key):
    """Ed25519 public key of a batch producer, base64 of its 32 raw bytes."""

    public_key: str


ModelName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]([ -~]*[!-~])?$")]
"""Headers say it: printable ASCII."""


class Tenant(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant_id: TenantId
    tier: Tier = "free"
    weight: int = Field(
        default=1, ge=1, le=MAX_WEIGHT,
        description="Where tenants wait for the same workers: its part of their tokens, beside those of the others.",
    )  # fmt: skip
    limits: Limits = Limits()
    model_limits: dict[ModelName, ScopedLimits] = Field(
        default_factory=dict, description="By a model's own name: what may be asked of that one."
    )
    budget: Budget | None = None
    project_budgets: dict[Annotated[str, Field(min_length=1, max_length=200)], Budget] = Field(default_factory=dict)
    policy: SafetyPolicy = SafetyPolicy()
    models: list[str] = Field(default_factory=list, description="Models it may use; empty: all.")
    fallback: bool | None = Field(
        default=None,
        description="Whether a model's `fallback` may answer in its place, of a request that does not forbid it. None:"
        " of the tier `free` it may.",
    )
    continuation: bool = Field(
        default=True,
        description="Whether its answers are continued when their workers are lost, where the model allows.",
    )
    alert_webhook: WebhookUrlOrNone = Field(
        default="", description="Where its alerts are sent, over TLS and out of here; empty: nowhere."
    )
    api_keys: list[ApiKey] = Field(default_factory=list)
    producer_keys: list[ProducerKey] = Field(default_factory=list)

    @model_validator(mode="after")
    def _budgets_are_in_one_currency(self) -> Self:
        named = {"budget": self.budget, **{f"project_budgets.{name}": b for name, b in self.project_budgets.items()}}
        named |= {f"keys.{key.key_id}.budget": key.budget for key in self.keys}
        found = {budget.currency: field for field, budget in named.items() if budget is not None}
        if len(found) > 1:
            fields = " and ".join(f"{field} in {currency}" for currency, field in found.items())
            raise ValueError(f"budgets of one tenant are in one currency, not {fields}")
        return self

    @property
    def keys(self) -> list[ApiKey | ProducerKey]:
        return [*self.api_keys, *self.producer_keys]

    @property
    def has_budgets(self) -> bool:
        """Its own, or of a project or a key."""
        return bool(self.budget or self.project_budgets) or any(key.budget is not None for key in self.keys)

    def api_key(self, key_id: str, now_ms: int) -> ApiKey | None:
        """None for unknown keys, and for those that are revoked or over."""
        return next((key for key in self.api_keys if key.key_id == key_id and key.stands(now_ms)), None)

    @property
    def may_fall_back(self) -> bool:
        return FALLS_BACK[self.tier] if self.fallback is None else self.fallback


class Price(BaseModel):
    """Per million tokens, in `currency`; disjoint classes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: Currency = "USD"
    uncached_input: Decimal = Field(default=Decimal("0.10"), ge=0)
    cached_input: Decimal = Field(default=Decimal("0.02"), ge=0)
    output: Decimal = Field(default=Decimal("0.40"), ge=0)
    reasoning: Decimal = Field(default=Decimal("0.40"), ge=0)


class Embedding(BaseModel):
    """What a model that embeds gives: vectors of length 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dimensions: Dimensions
    shorter: list[Dimensions] = Field(
        default_factory=list,
        description="To what they may be cut, where the model was trained for it (Matryoshka); none: to nothing.",
    )

    @property
    def offered(self) -> list[int]:
        return sorted({*self.shorter, self.dimensions})

    @model_validator(mode="after")
    def _are_shorter(self) -> Self:
        if max(self.shorter, default=0) >= self.dimensions:
            raise ValueError("shorter: not below dimensions")
        return self


class PoolWeights(BaseModel):
    """By what the pools of a model that have room are compared: the lightest is taken, of equals the first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cost: float = Field(default=0, ge=0, description="Times the pool's `cost`.")
    wait_s: float = Field(default=0, ge=0, description="Times the seconds for which one waits for a slot there, about.")


class Model(BaseModel):
    """A model as clients name it. `path` holds tokenizer, chat template and, for real engines, weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ModelName
    aliases: list[ModelName] = Field(default_factory=list)
    path: str
    pool: str = Field(description="Pool that serves it, and where producers' jobs for it wait.")
    alternates: list[PoolName] = Field(
        default_factory=list,
        description="More pools that serve it. In their order they are asked for room, behind `pool`.",
    )
    fallback: str = Field(
        default="",
        description="The smaller model that answers in its place where none of its pools has room, or a worker; by its"
        " own name. Empty: none does.",
    )
    weights: PoolWeights = Field(
        default=PoolWeights(), description="What counts between its pools. Nothing: their order alone."
    )
    continuation: bool = Field(
        default=True,
        description="Whether an answer that has begun is continued when its worker is lost. Else it ends as"
        " `generation_interrupted`.",
    )
    context_window: int = Field(ge=16, le=2**24)
    tool_parser: ParserName = Field(
        default="", description="How its answers call tools, by vLLM's name (`hermes`, …); empty: they call none."
    )
    reasoning_parser: ParserName = Field(
        default="", description="How its answers tell reasoning apart, by vLLM's name; empty: they do not."
    )
    embedding: Embedding | None = Field(
        default=None, description="Of a model that embeds texts. It answers nothing else, and no other embeds."
    )
    price: Price = Price()
    description: str = ""

    @property
    def pools(self) -> list[str]:
        """All that serve it, in the order in which they are asked."""
        return [self.pool, *self.alternates]


class GpuHour(BaseModel):
    """What an hour of one GPU costs whoever runs the pool; for costs and margins, on no bill."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cost: Decimal = Field(ge=0, allow_inf_nan=False, description="In `currency`, with 12 decimals at most.")
    currency: Literal["USD", "EUR"] = "USD"


class Pool(BaseModel):
    """Workers that serve one model with one kind of engine, and whose requests they are for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: PoolName
    engine: Literal["vllm", "simulated"]
    workers: int = Field(default=1, ge=0, le=1_024, description="Processes that the local runner starts.")
    max_running: int = Field(
        default=64, ge=1, le=65_536, description="Answers in the engine's batch; of one request each takes a place."
    )
    engine_args: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="Passed to vLLM's AsyncEngineArgs, or to the simulated engine's settings.",
    )
    tenants: list[TenantId] = Field(default_factory=list, description="Who may use it; empty: all.")
    cost: float = Field(default=1, ge=0, description="Of a token there, beside the model's other pools.")
    gpu_hour: GpuHour | None = Field(
        default=None, description="What an hour of each of its GPUs costs. None: what its answers cost is not known."
    )
    max_context: int | None = Field(
        default=None, ge=16, description="Of a prompt and its longest answer together, in tokens. None: the model's."
    )
    max_output: int | None = Field(
        default=None, ge=1, description="Of each answer's bound, in tokens. None: as much as its context has room for."
    )
    queues_for: list[Tier] = Field(
        default=list(TIERS),
        description="Whose requests wait here while all of its slots are taken; those of other tiers need a free one.",
    )

    @model_validator(mode="after")
    def _vllm_can_be_so(self) -> Self:
        if self.engine == "vllm":
            vllm_arguments(self.engine_args)
        return self

    @property
    def devices(self) -> int:
        """That each of its workers computes on, where the host has GPUs."""
        return vllm_arguments(self.engine_args).devices if self.engine == "vllm" else 0

    def is_open_to(self, tenant_id: str) -> bool:
        return not self.tenants or tenant_id in self.tenants


LANE_OF_TIER: dict[str, Lane] = {"free": Lane.STANDARD, "paid": Lane.STANDARD, "premium": Lane.INTERACTIVE}


class TenantDirectory(Protocol):
    """Reads only; answers from memory; a change becomes visible within seconds without a restart."""

    def tenant(self, tenant_id: str) -> Tenant | None: ...

    def by_api_key(self, api_key: str) -> tuple[Tenant, ApiKey] | None:
        """None for unknown keys, and for those that are revoked or over. Compares digests, never keys."""

    def producer_key(self, tenant_id: str, key_id: str) -> ProducerKey | None:
        """None for unknown keys, and for those that are revoked or over."""

    def tenants(self) -> list[Tenant]: ...


class ModelCatalog(Protocol):
    def model(self, name_or_alias: str) -> Model | None: ...

    def models(self) -> list[Model]: ...

    def pool(self, name: str) -> Pool: ...

    def pools(self) -> list[Pool]: ...


def continues(tenant: Tenant | None, model: Model | None) -> bool:
    """Whether an answer that has begun goes on elsewhere when its worker is lost.

    What is embedded always does: no vector follows from another.
    """
    if model is not None and model.embedding is not None:
        return True
    return all(policy is None or policy.continuation for policy in (tenant, model))


def pools_for(tenant: Tenant, model: Model, catalog: ModelCatalog) -> list[Pool]:
    """Those in which the tenant may use the model, in the order in which they are asked; none: it may not at all."""
    if tenant.models and model.name not in tenant.models:
        return []
    return [pool for pool in map(catalog.pool, model.pools) if pool.is_open_to(tenant.tenant_id)]
