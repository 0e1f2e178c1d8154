"""One piece of work, and all that a worker holds of them.

Its life:

    queued → claiming → running → closing → done          (nobody had it)
           → spilling                                     (another worker reads a copy of it)
                      → fencing → reading → queued …      (somebody may have begun it)
                      → waiting → queued …                (another worker's lease, or a retry)

Only what enters the engine waits for a slot in it. What waits is looked up among the claims meanwhile: to end what a
dead worker began takes neither slot nor engine, and its client waits for that ending.
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from gpu_consumers.core.claims import Claim
from gpu_consumers.core.fair_queue import NEVER
from gpu_consumers.core.held import Held
from gpu_consumers.engines.port import Accepted, EngineRequest
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.request import LANES, AdmittedRequest, Lane
from streams.log.offset_tracker import OffsetTracker


class Phase(Enum):
    QUEUED = auto()
    CLAIMING = auto()
    FENCING = auto()
    READING = auto()
    RUNNING = auto()
    WAITING = auto()
    CLOSING = auto()
    SPILLING = auto()


ENGAGED = frozenset({Phase.CLAIMING, Phase.FENCING, Phase.READING, Phase.RUNNING})
UNSTARTED = frozenset({Phase.QUEUED, Phase.WAITING, Phase.SPILLING})
_IN_SLOT = frozenset({Phase.CLAIMING, Phase.RUNNING})

Plan = Literal["claim", "again", "fresh", "takeover", "generate"]
"""`claim`: ask whether it is ours. `again`: it was, and its engine was lost before it said anything. `fresh`: it is
ours, and counted. `takeover`: fence and read back. `generate`: that has been done, and nothing stands in the way."""

SUSPECT_LOSSES = 2
"""A worker is lost for many reasons, so one loss says little; who was in an engine that died is suspect at once."""
MAX_LOSSES = 3
_PRIORITY = {lane: index for index, lane in enumerate(LANES)}


@dataclass(slots=True, eq=False)
class Work:
    """One response that this worker has read. `plan` is what happens when the scheduler gives it out."""

    request: AdmittedRequest
    prompt: "array[int]"
    prompt_tokens: int
    scope: Scope
    phase: Phase = Phase.QUEUED
    plan: Plan = "claim"
    sources: list[tuple[OffsetTracker, int]] = field(default_factory=list)
    is_owed: bool = False
    """A record of it was counted as ended by mistake: nobody else reads it again."""
    attempt_id: str = ""
    claimed_as: str = ""
    """The attempt under which it is ours among the claims; empty: it is not."""
    is_counted: bool = False
    """Its claim counts already that it enters an engine."""
    lacks_claim: bool = True
    """It has none, or the store may have lost it: while it runs, it is asked for."""
    may_keep: bool = True
    """It is not asked for already, nor another's."""
    was_forgotten: bool = False
    """The store had none of it, or had lost it, when it was claimed anew: meanwhile another may have fenced, and nobody
    may believe that it has ended for what this claim says."""
    is_known_free: bool = False
    """Since it waits here it was looked up, and nobody had it."""
    must_take_over: bool = False
    cancelled: EndingCode | None = None
    losses: int = 0
    """How often it was lost with its worker or engine before it had said anything, or anything more."""
    lost_elsewhere: int = 0
    """Of `losses` those in other pools, which no claim of this one counts."""
    most_losses: int | None = None
    """Of an answer that has said something: so often, at most, it was lost since. Those before are forgiven."""
    engine_deaths: int = 0
    """Of this worker's engine, with an attempt in it that had said something."""
    lost_here: bool = False
    on_trial: bool = False
    """It is in the engine alone, as a suspect."""
    is_cleared: bool = False
    """It has been alone in an engine since, and got its first token."""
    generated_end: int = 0
    """What is known of its partition of `generated` before any attempt of this worker: it reaches so far."""
    reads_from: int = 0
    queued_first_ms: int | None = None
    asked_at_ms: int = 0
    """When the claims were asked about it last."""
    retry_at_ms: int = 0
    lease_ends_ms: int = 0
    """That of another worker which it waits for, or did, as far as it was told; 0: it waits for something else."""
    submitted_at_ms: int = 0
    first_token_at_ms: int = 0
    last_token_at_ms: int = 0
    accepted: Accepted | None = None
    """What attempts before the current one have said, which goes on from there."""
    next_sequence: int = 1
    """Of the next token that is published."""
    generated_tokens: int = 0
    pauses: int = 0
    """How often it was taken out of the engine for who went first, by this worker."""
    attempts: int = 0
    """In the log, those of other workers and after pauses too, as far as it was read back."""
    told_beyond: int = NEVER
    """Of more tokens than these the scheduler is to be told."""
    on_floor: bool = False
    """It has its slot by its lane's floor."""
    is_silent: bool = False
    """It is in a slot, and has no token."""
    open_choices: frozenset[int] = frozenset()
    """Of the current attempt: those that the engine has not ended."""
    cached_tokens: int = 0
    # Of the request; looked at with every token, so kept at hand.
    response_id: str = field(init=False)
    partition: int = field(init=False)
    move: int = field(init=False)

    def __post_init__(self) -> None:
        self.response_id = self.request.response_id
        self.partition = self.request.generated_partition
        self.move = self.request.move
        self.reads_from = self.generated_end = self.request.opened_offset
        self.losses = self.lost_elsewhere = self.request.losses

    @property
    def is_suspect(self) -> bool:
        """It may be what killed those who tried it."""
        return not self.is_cleared and (self.lost_here or self.losses >= SUSPECT_LOSSES)

    @property
    def lost_by_pool(self) -> int:
        """Of `losses` those in this pool."""
        return self.losses - self.lost_elsewhere

    @property
    def prompt_field(self) -> str:
        """As requests have it, of what is answered with text."""
        return "prompt" if self.request.endpoint == "completions" else "messages"

    @property
    def is_own(self) -> bool:
        """This worker has to see to it that it ends; else whoever reads its record does."""
        return bool(self.sources) or self.is_owed

    @property
    def waits_for_claim(self) -> bool:
        return self.phase is Phase.QUEUED and self.plan == "claim"

    @property
    def is_behind_lease(self) -> bool:
        return self.phase is Phase.WAITING and self.lease_ends_ms > 0

    @property
    def has_said_nothing(self) -> bool:
        """Nothing of the current attempt was published, neither a token nor the end of a choice."""
        return self.next_sequence == self._first_sequence and self.open_choices == self._choices

    @property
    def engine_priority(self) -> int:
        """The engine begins the lowest first, of equals who came first."""
        return 0 if self.on_floor else _PRIORITY[self.request.lane]

    def engine_request(self) -> EngineRequest:
        request = self.request
        return EngineRequest(
            self.attempt_id,
            self.prompt.tolist(),
            request.sampling,
            request.max_tokens,
            self.engine_priority,
            request.scope.tenant_id,
            request.tools,
            request.tool_choice,
            is_turn=request.endpoint != "completions",
            choices=request.choices,
            input_ends=request.input_ends,
            dimensions=request.dimensions,
            accepted=self.accepted,
        )

    def read_whole(self, begun_offset: int | None) -> None:
        """Of the attempts that precede its own, none is to be left out."""
        self.reads_from = self.request.opened_offset if begun_offset is None else begun_offset

    @property
    def slots(self) -> int:
        """That its next attempt takes."""
        return len(self._choices)

    @property
    def said_tokens(self) -> int:
        """Of the choices that are still open, in attempts before the next: what goes into the engine again."""
        return 0 if self.accepted is None else sum(len(self.accepted.token_ids[each]) for each in self._choices)

    @property
    def _first_sequence(self) -> int:
        return 1 if self.accepted is None else 1 + self.accepted.tokens

    @property
    def _choices(self) -> frozenset[int]:
        """Those that are open when an attempt begins."""
        every = frozenset(range(self.request.choices))
        return every if self.accepted is None else every - self.accepted.ended

    @property
    def is_engaged_with(self) -> bool:
        """It is in the engine, or was taken over and waits for a slot: nobody else is to begin it."""
        return self.phase is Phase.RUNNING or (self.phase is Phase.QUEUED and self.plan == "generate")

    def asks_anew(self) -> None:
        """It has no claim, and the attempts of this worker stand before whatever comes of the next."""
        self.claimed_as, self.is_counted, self.lacks_claim, self.must_take_over = "", False, True, True

    def has_begun(self, claim: Claim) -> None:
        """The claim counts how often it has entered an engine of this pool, its own entry too where that is counted."""
        self.losses = max(self.losses, self.lost_elsewhere + claim.begun - self.is_counted)
        self.was_forgotten |= claim.state == "fresh" and self.plan != "claim"

    def forgive_losses(self, silent_attempts: int) -> None:
        """It has said something, and then so many attempts nothing."""
        self.most_losses, self.lost_elsewhere = silent_attempts, 0
        self.losses = min(self.losses, silent_attempts)

    def begins_anew(self) -> None:
        """Its next attempt has said nothing."""
        self.next_sequence = self._first_sequence
        self.generated_tokens = 0
        self.open_choices = self._choices
        self.cached_tokens = 0
        self.first_token_at_ms = self.last_token_at_ms = 0


class Works:
    """Every response that the worker answers for, also by the attempt that is in the log or the engine now."""

    def __init__(self) -> None:
        self.by_response: dict[str, Work] = {}
        self.by_attempt: dict[str, Work] = {}
        # By response, how many it takes.
        self._in_slots: dict[str, int] = {}
        self.held = Held()
        self._left: list[tuple[Lane, str, int | None, bool]] = []
        self._grown: list[Work] = []

    @property
    def are_in_slots(self) -> bool:
        """Whether anything is in the engine, or about to enter it."""
        return bool(self._in_slots)

    @property
    def is_trial_on(self) -> bool:
        """Who is in the engine is to be alone there."""
        return len(self._in_slots) == 1 and all(self.by_response[each].is_suspect for each in self._in_slots)

    @property
    def tokens_per_slot(self) -> int:
        """How long an answer of those that are in slots may be, on average."""
        slots = sum(self._in_slots.values())
        tokens = sum(own * self.by_response[each].request.max_tokens for each, own in self._in_slots.items())
        return tokens // slots if slots else 0

    def set_phase(self, work: Work, phase: Phase) -> None:
        """Each choice that is to be generated takes a slot."""
        had_slots = work.response_id in self._in_slots
        if phase in _IN_SLOT and not had_slots:
            work.is_silent = True
            self.held.silent[work.request.lane] += 1
            self._take_slots(work, work.slots)
        elif phase not in _IN_SLOT and had_slots:
            self.has_token(work)
            self._take_slots(work, -self._in_slots[work.response_id])
            del self._in_slots[work.response_id]
            output = work.generated_tokens if work.phase is Phase.RUNNING else None
            self._left.append((work.request.lane, work.response_id, output, phase is not Phase.CLOSING))
        work.phase = phase

    def has_token(self, work: Work) -> None:
        """The engine has begun to answer it, or never will."""
        if work.is_silent:
            work.is_silent = False
            self.held.silent[work.request.lane] -= 1

    def behind_batch(self, batch: int) -> list[Work]:
        """What was given to the engine and waits there, as its batch has so many places; last who is begun first."""
        beyond = sum(self._in_slots.values()) - batch
        if beyond <= 0:
            return []
        silent = [work for each in self._in_slots if (work := self.by_response[each]).is_silent]
        found: list[Work] = []
        for work in sorted(silent, key=lambda work: work.engine_priority)[::-1]:
            slots = self._in_slots[work.response_id]
            if beyond < slots:
                break
            beyond -= slots
            found.append(work)
        return found

    def has_grown(self, work: Work) -> None:
        """It has more tokens than it was taken to come to."""
        work.told_beyond = NEVER
        self._grown.append(work)

    def take_left(self) -> list[tuple[Lane, str, int | None, bool]]:
        """Who has left the engine since this was asked last, with how many tokens (None: it never entered), and whether
        it goes on later.
        """
        left, self._left = self._left, []
        return left

    def take_grown(self) -> list[Work]:
        """As `take_left`; those may have left since."""
        grown, self._grown = self._grown, []
        return grown

    def end_choice(self, work: Work, choice: int) -> None:
        """The engine has ended one of its open choices: that slot is free, however long the others take."""
        work.open_choices -= {choice}
        self._take_slots(work, -1)

    def _take_slots(self, work: Work, slots: int) -> None:
        self._in_slots[work.response_id] = self._in_slots.get(work.response_id, 0) + slots
        self.held.add(work.request.lane, work.request.scope.tenant_id, slots, on_floor=work.on_floor)

    def set_attempt(self, work: Work) -> None:
        """From now on its `attempt_id` stands for it."""
        self.by_attempt[work.attempt_id] = work

    def unset_attempt(self, work: Work) -> None:
        self.by_attempt.pop(work.attempt_id, None)

    def of_move(self, response_id: str, move: int) -> Work | None:
        """The response's work, if it is of that move: what comes of an earlier one is nothing to it."""
        work = self.by_response.get(response_id)
        return work if work is not None and work.move == move else None

    def of_attempt(self, response_id: str, attempt_id: str, move: int) -> Work | None:
        """The response's work of that move, if that is its attempt now; empty: it was never begun."""
        work = self.of_move(response_id, move)
        return work if work is not None and work.attempt_id == attempt_id else None

    def is_read_back(self, response_id: str, attempt_id: str) -> bool:
        """Whether what the log has of it before that attempt is still waited for."""
        work = self.by_attempt.get(attempt_id)
        return work is not None and work.response_id == response_id and work.phase is Phase.READING

    @property
    def is_generating(self) -> bool:
        """Whether an attempt is in the engine."""
        return any(work.phase is Phase.RUNNING for work in self.by_attempt.values())

    @property
    def silent_since_ms(self) -> int | None:
        """When the last one entered the engine of those in it that have no token. None: there is none."""
        running = (work for work in self.by_attempt.values() if work.phase is Phase.RUNNING)
        return max((work.submitted_at_ms for work in running if not work.first_token_at_ms), default=None)

    @property
    def unfinished_attempts(self) -> int:
        """What is begun and not yet acknowledged to its end, or owed: nobody else would end it."""
        begun = ENGAGED | {Phase.CLOSING}
        return sum(work.phase in begun or work.is_owed for work in self.by_response.values())
