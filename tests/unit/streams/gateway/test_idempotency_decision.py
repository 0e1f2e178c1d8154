"""What is done for a request with a key, step by step, by many that come at once, die, and are cut off."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.quota.port import OUTCOME_KEEP_MS
from streams.gateway.idempotency.decision import (
    DECIDED_ONCE_MS,
    TRIED_WITHIN_MS,
    Known,
    Step,
    decide,
)
from streams.gateway.idempotency.keyed import digest_of
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import KEPT_MS, Claim, Held
from streams.gateway.service.ports import ACKNOWLEDGE_TIMEOUT_S

CLAIM = Claim("acme", "k", b"d", "resp_own")
_T = TypeVar("_T")


def held(response_id: str = "resp_first", digest: bytes = b"d", *, age_ms: int = 0, tried_ms: int = 0) -> Held:
    now = 10 * KEPT_MS
    return Held(digest, response_id, now - age_ms, now - tried_ms, now)


@pytest.mark.parametrize(
    ("stands_for", "known", "step"),
    [
        (held("resp_own"), None, Step.BEGIN),
        (held(digest=b"e"), None, Step.ANOTHER_BODY),
        (held(digest=b"e"), Known.REFUSED, Step.ANOTHER_BODY),
        (held(), None, Step.LOOK),
        (held(), Known.THERE, Step.JOIN),
        (held(age_ms=KEPT_MS), Known.THERE, Step.JOIN),
        (held(), Known.REFUSED, Step.BEGIN_ANEW),
        (held(), Known.NOTHING, Step.WAIT),
        (held(age_ms=TRIED_WITHIN_MS, tried_ms=TRIED_WITHIN_MS), Known.NOTHING, Step.REPEAT),
        (held(age_ms=TRIED_WITHIN_MS, tried_ms=1), Known.NOTHING, Step.WAIT),
        (held(tried_ms=10 * KEPT_MS), Known.NOTHING, Step.REPEAT),
        (held(age_ms=DECIDED_ONCE_MS, tried_ms=TRIED_WITHIN_MS), Known.NOTHING, Step.UNKNOWN),
    ],
)
def test_a_request_with_a_key_is(stands_for: Held, known: Known | None, step: Step) -> None:
    assert decide(CLAIM, stands_for, known) is step


def test_who_has_waited_long_enough_waits_no_longer() -> None:
    first = held(age_ms=1, tried_ms=1)
    assert decide(CLAIM, first, Known.NOTHING, TRIED_WITHIN_MS - 2) is Step.WAIT
    assert decide(CLAIM, first, Known.NOTHING, TRIED_WITHIN_MS - 1) is Step.REPEAT


def test_what_is_written_again_is_still_remembered_by_admission_and_no_longer_on_its_way() -> None:
    assert DECIDED_ONCE_MS + TRIED_WITHIN_MS < OUTCOME_KEEP_MS
    assert TRIED_WITHIN_MS >= 2 * ACKNOWLEDGE_TIMEOUT_S * 1_000
    assert DECIDED_ONCE_MS < KEPT_MS


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)


@given(BODIES, st.booleans(), st.booleans())
def test_neither_the_order_of_fields_nor_how_it_is_told_makes_another_request(
    body: dict[str, Any], streams: bool, has_options: bool
) -> None:
    again = dict(reversed(body.items())) | {"stream": streams} | ({"stream_options": {}} if has_options else {})
    assert digest_of("p", body) == digest_of("p", again)
    assert digest_of("p", body) != digest_of("q", body)


@given(BODIES, BODIES)
def test_other_bodies_are_other_requests(one: dict[str, Any], other: dict[str, Any]) -> None:
    asked = [{name: value for name, value in each.items() if name != "stream"} for each in (one, other)]
    if repr(asked[0]) != repr(asked[1]) and asked[0] != asked[1]:
        assert digest_of("p", one) != digest_of("p", other)


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """What in memory nobody waits for."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        work.close()
    raise AssertionError("it waits")


class Client:
    """One that asks, and where it stands."""

    def __init__(self, claim: Claim, held: Held) -> None:
        self.claim = claim
        self.held = held
        self.is_first = held.response_id == claim.response_id
        self.known: Known | None = None
        self.writes = self.is_first
        """Whether it is about to write the request to the log, under its claim's id."""


class OneKey(RuleBasedStateMachine):
    """One key of one tenant, a log, and admission that decides each id once for as long as it remembers.

    Clients die between any two steps. A request that was answered must not be answered under another id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys = MemoryIdempotencyKeys()
        self.now_ms = 1_000_000
        self.keys.clock = lambda: self.now_ms
        self.minted = 0
        self.clients: list[Client] = []
        self.log: list[tuple[str, bytes]] = []
        self.ended: dict[str, Known] = {}
        self.answered: set[str] = set()

    @rule(body=st.sampled_from([b"one", b"two"]))
    def ask(self, body: bytes) -> None:
        self.claim(body)

    def claim(self, body: bytes) -> Step:
        self.minted += 1
        claim = Claim("acme", "k", body, f"r{self.minted}")
        held = at_once(self.keys.claim(claim))
        step = decide(claim, held)
        if step in (Step.BEGIN, Step.LOOK):
            self.clients.append(Client(claim, held))
        return step

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if not client.writes:
            client.known = self.ended.get(client.held.response_id, Known.NOTHING)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.writes:
            self.clients.remove(client)
            self.log.append((client.claim.response_id, client.claim.digest))
        elif client.known is not None:
            self.act(client)

    def act(self, client: Client) -> Step:
        step = decide(client.claim, client.held, client.known)
        if step is Step.REPEAT:
            client.claim = client.claim._replace(response_id=client.held.response_id)
        if step in (Step.REPEAT, Step.BEGIN_ANEW) and at_once(self.keys.take(client.claim, client.held)):
            client.writes = True
            return step
        self.clients.remove(client)
        return step

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), reached=st.booleans())
    def give_up(self, data: st.DataObject, reached: bool) -> None:
        """Refused before the log had it, or not acknowledged: then it may have reached it."""
        client = data.draw(st.sampled_from(self.clients))
        if not client.writes:
            return
        self.clients.remove(client)
        if reached:
            self.log.append((client.claim.response_id, client.claim.digest))
        if client.is_first and not reached:
            at_once(self.keys.drop(client.claim, client.held))
        else:
            at_once(self.keys.let_go(client.claim))

    @precondition(lambda self: self.log)
    @rule(known=st.sampled_from([Known.REFUSED, Known.THERE]))
    def decide_one(self, known: Known) -> None:
        response_id, _ = self.log.pop(0)
        if self.ended.setdefault(response_id, known) is Known.THERE:
            self.answered.add(response_id)

    @rule(passes_ms=st.sampled_from([1, TRIED_WITHIN_MS // 2, TRIED_WITHIN_MS, 60_000]))
    def wait(self, passes_ms: int) -> None:
        self.now_ms += passes_ms

    @invariant()
    def at_most_one_is_answered(self) -> None:
        assert len(self.answered) <= 1

    def teardown(self) -> None:
        """Whoever asks on is answered in the end, if all others are gone and the log is read."""
        self.clients.clear()
        for _ in range(4):
            while self.log:
                self.decide_one(Known.THERE)
            self.now_ms += TRIED_WITHIN_MS
            for body in (b"one", b"two"):
                if self.claim(body) is not Step.ANOTHER_BODY:
                    break
            client = self.clients.pop()
            if client.writes:
                self.log.append((client.claim.response_id, client.claim.digest))
                continue
            self.clients.append(client)
            client.known = self.ended.get(client.held.response_id, Known.NOTHING)
            step = self.act(client)
            if step is Step.JOIN:
                break
            assert step in (Step.REPEAT, Step.BEGIN_ANEW), step
            self.clients.remove(client)
            self.log.append((client.claim.response_id, client.claim.digest))
        else:
            raise AssertionError("never answered")
        assert len(self.answered) == 1
        assert self.ended[client.held.response_id] is Known.THERE


OneKey.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestOneKey = OneKey.TestCase


def test_a_store_in_memory_is_waited_for_by_nobody() -> None:
    """What the machine above relies on."""
    keys = MemoryIdempotencyKeys()
    assert at_once(keys.claim(CLAIM)).response_id == CLAIM.response_id
    assert asyncio.run(keys.claim(CLAIM._replace(response_id="r2"))).response_id == CLAIM.response_id
