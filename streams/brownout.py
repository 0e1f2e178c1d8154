"""Degradation in steps: what is measured of a pool, when its level moves, and what a level takes from whom. Pure.

| level | free tenants                        | others                                    | jobs and lines of batches |
|-------|-------------------------------------|-------------------------------------------|---------------------------|
| 1     | shorter answers (`free_max_tokens`) | as ever                                   | as their tenants          |
| 2     | … and a smaller model, if there is  | as ever                                   | as their tenants          |
| 3     | …                                   | shorter answers too, if `paid_max_tokens` | none is taken: they wait  |

A level moves by one step at a time: up when a target was missed without a break for `up_after_s`, down when all were
met with room to spare for `down_after_s`. In between it stays. So before each move there is all of its time, without a
move in it.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.brownout import MAX_LEVEL
from schemas.request import Lane
from streams.drain import WINDOW_MS

SLO_LANES: Final = (Lane.INTERACTIVE, Lane.STANDARD)
"""Those in which somebody waits for first tokens."""
FEWEST_FIRST_TOKENS: Final = 20
"""Of half a minute: of fewer no share says anything."""
TO_SPARE: Final = 2
"""A target is met with room to spare by less than its half."""
MAX_GAP_MS: Final = 5_000
"""Between two readings. Of a longer one nobody knows what was in it."""

Pressure = Literal["missed", "between", "met"]
Level = Annotated[int, Field(ge=0, le=MAX_LEVEL)]


class LaneTargets(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    queue_age_ms: int = Field(
        ge=100, description="It is missed while its oldest request waits longer, and so would one that comes now."
    )
    first_token_ms: int = Field(ge=10, description="From acceptance to a first token; later ones are late.")


class _Interactive(LaneTargets):
    queue_age_ms: int = Field(default=15_000, ge=100)
    first_token_ms: int = Field(default=10_000, ge=10)


class _Standard(LaneTargets):
    queue_age_ms: int = Field(default=60_000, ge=100)
    first_token_ms: int = Field(default=60_000, ge=10)


class BrownoutPolicy(BaseModel):
    """When pools are degraded, and how. One table for a region."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interactive: _Interactive = _Interactive()
    standard: _Standard = _Standard()
    late_share: float = Field(
        default=0.2, gt=0, le=1, description="Of a lane's first tokens of half a minute, how many may be late."
    )
    up_after_s: float = Field(default=30, ge=1, description="So long a target is missed before the level rises by one.")
    down_after_s: float = Field(default=120, ge=1, description="So long all are met, by half, before it falls by one.")
    max_level: Level = Field(default=MAX_LEVEL, description="0: nothing is ever degraded.")
    pinned: dict[str, Level] = Field(
        default_factory=dict, description="Pools whose level the operator has set, whatever is measured."
    )
    free_max_tokens: int = Field(default=1_024, ge=1, description="Of each answer of a free tenant, from level 1 on.")
    paid_max_tokens: int | None = Field(
        default=None, ge=1, description="Of each answer of anybody else, at level 3. None: they are never cut."
    )

    @model_validator(mode="after")
    def _pins_are_applied(self) -> Self:
        for pool, level in self.pinned.items():
            if level > self.max_level:
                raise ValueError(f"pinned.{pool}: {level} is more than max_level, {self.max_level}")
        return self

    def of(self, lane: Lane) -> LaneTargets:
        """Of one of `SLO_LANES`."""
        targets: LaneTargets = getattr(self, lane.value)
        return targets


DEFAULT_POLICY: Final = BrownoutPolicy()


class LaneSample(NamedTuple):
    """What a pool's workers say of one lane. `wait_ms`: what one that comes now would wait; None: not measured."""

    oldest_ms: int = 0
    wait_ms: int | None = None
    first_tokens: int = 0
    late: int = 0


class Reading(NamedTuple):
    """Whether targets are missed, or met with room to spare. `why` names the one that is missed."""

    pressure: Pressure
    why: str = ""


def read(samples: Mapping[Lane, LaneSample], policy: BrownoutPolicy, ready_for_ms: int) -> Reading:
    """One that has waited for long is no queue while those behind it pass: what comes now has to wait as long.

    A target is missed by waits alone in which a worker was ready, as one has been for `ready_for_ms`: of what came
    before that nobody could have begun anything. Nor is it met while such waits are there.
    """
    is_met = True
    for lane in SLO_LANES:
        sample, targets = samples.get(lane, LaneSample()), policy.of(lane)
        waits_ms = sample.oldest_ms if sample.wait_ms is None else min(sample.oldest_ms, sample.wait_ms)
        if min(waits_ms, ready_for_ms) > targets.queue_age_ms:
            return Reading("missed", f"{lane.value}: a wait of {waits_ms} ms, target {targets.queue_age_ms}")
        share = sample.late / sample.first_tokens if sample.first_tokens >= FEWEST_FIRST_TOKENS else 0.0
        if share > policy.late_share and ready_for_ms >= targets.first_token_ms + WINDOW_MS:
            why = f"{lane.value}: {share:.0%} of first tokens after {targets.first_token_ms} ms"
            return Reading("missed", f"{why}, target {policy.late_share:.0%}")
        is_met = is_met and waits_ms * TO_SPARE <= targets.queue_age_ms and share * TO_SPARE <= policy.late_share
    return Reading("met" if is_met else "between")


class Steps:
    """The way of one pool through the levels, for who decides on it."""

    def __init__(self, policy: BrownoutPolicy) -> None:
        self._policy = policy
        self._level = 0
        self._pressure: Pressure = "between"
        self._since_ms = 0
        self._read_at_ms: int | None = None

    def next(self, level: int, pressure: Pressure, now_ms: int) -> int:
        """The level that is to follow `level`, at which the pool stands: the same, or one beside it.

        Asked every second or so; until the pool stands at what was answered it is answered again. After a gap, and
        where somebody else has moved the level, all begins anew.
        """
        is_anew = self._read_at_ms is None or not 0 <= now_ms - self._read_at_ms <= MAX_GAP_MS
        if is_anew or pressure != self._pressure or level != self._level:
            self._since_ms = now_ms
        self._level, self._pressure, self._read_at_ms = level, pressure, now_ms
        if level > self._policy.max_level:
            return self._policy.max_level
        lasted_s = (now_ms - self._since_ms) / 1_000
        if pressure == "missed" and lasted_s >= self._policy.up_after_s:
            return min(level + 1, self._policy.max_level)
        if pressure == "met" and lasted_s >= self._policy.down_after_s:
            return max(level - 1, 0)
        return level


class Degraded(NamedTuple):
    """What a level means for somebody. `max_tokens` None: as ever."""

    level: int = 0
    max_tokens: int | None = None
    prefers_smaller_model: bool = False
    takes_no_jobs: bool = False


def degraded(level: int, tier: str, policy: BrownoutPolicy) -> Degraded:
    """For tenants of the tier, in a pool that stands at `level`."""
    level = min(level, policy.max_level)
    is_free = tier == "free"
    if is_free and level >= 1:
        max_tokens: int | None = policy.free_max_tokens
    else:
        max_tokens = policy.paid_max_tokens if level >= MAX_LEVEL else None
    return Degraded(level, max_tokens, is_free and level >= 2, level >= MAX_LEVEL)
