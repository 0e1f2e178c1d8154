"""Whatever is called in whatever order, the script on a real Redis answers as the model does."""

import asyncio
import uuid

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis

from agents.quota.port import Finished, Refusal
from agents.quota.store import RedisQuota, Restored
from schemas.admission import Decision
from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from streams.directory import Limits
from tests.unit.agents.quota.quota_model import TenantModel

NOW = 1_790_000_000_000
ROUTE = Decision(pool="default", lane=Lane.STANDARD, lane_partition=1, generated_partition=2, worker_id="worker-1")
REFUSAL = Refusal(code=EndingCode.PROMPT_REFUSED, param="messages")
IDS = st.sampled_from(["r1", "r2", "r3", "r4", "r5"])
TOKENS = st.integers(0, 1_500)


def routed(partition: int, lane: Lane) -> Decision:
    return ROUTE.model_copy(update={"generated_partition": partition, "lane": lane})


def test_any_sequence_of_calls_agrees_with_the_model(redis_url: str) -> None:
    class Sequences(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.runner = asyncio.Runner()
            self.client = Redis.from_url(redis_url, retry=None)
            # Redis does not see the model's clock: what does not expire there must not in the model.
            self.quota = RedisQuota(
                self.client, f"t{uuid.uuid4().hex[:10]}", keep_ms=10**9, now_ms=NOW, refusals_kept=4
            )
            self.settled: set[str] = set()

        def heard(self, id_: str, real: object, expected: object) -> None:
            assert real == expected
            assert getattr(real, "limits", None) == getattr(expected, "limits", None), "what clients are told"
            assert not isinstance(real, Finished) or id_ in self.settled, "silence before anybody settled it"

        @initialize(requests=st.integers(1, 200), tokens=st.integers(1, 200_000), concurrency=st.integers(1, 4))
        def begin(self, requests: int, tokens: int, concurrency: int) -> None:
            limits = Limits(
                requests_per_minute=requests, tokens_per_minute=tokens, concurrent_responses=concurrency,
                concurrent_jobs=1 + 4 // concurrency,
            )  # fmt: skip
            self.model = TenantModel(limits, NOW, keep_ms=10**9, refusals_kept=4)
            self.epoch = self.runner.run(self.quota.begin_epoch(self.runner.run(self.quota.new_epoch()), NOW))

        def teardown(self) -> None:
            self.runner.run(self.client.aclose())
            self.runner.close()

        @rule(ms=st.one_of(st.integers(0, 2_000), st.integers(0, 120_000)))
        def time_passes(self, ms: int) -> None:
            assert self.quota.now_ms is not None
            self.quota.now_ms += ms
            self.model.now_ms += ms

        @rule(
            id_=IDS, tokens=TOKENS, lasts_ms=st.integers(0, 60_000), lane=st.sampled_from(LANES), wait=st.booleans(),
            partition=st.none() | st.integers(0, 7),
        )  # fmt: skip
        def reserve(self, id_: str, tokens: int, lasts_ms: int, lane: Lane, wait: bool, partition: int | None) -> None:
            deadline_ms = self.model.now_ms + lasts_ms
            decision = None if partition is None else routed(partition, lane)
            real = self.runner.run(
                self.quota.reserve(
                    "acme", self.model.limits, id_, tokens=tokens, deadline_ms=deadline_ms, lane=lane,
                    decision=decision, may_wait=wait,
                )
            )  # fmt: skip
            expected = self.model.reserve(id_, tokens, deadline_ms, lane, decision=decision, may_wait=wait)
            self.heard(id_, real, expected)

        @rule(id_=IDS, partition=st.integers(0, 7), tokens=TOKENS, lane=st.sampled_from(LANES))
        def decide(self, id_: str, partition: int, tokens: int, lane: Lane) -> None:
            decision = routed(partition, lane)
            deadline_ms = self.model.now_ms + 1_000
            real = self.runner.run(
                self.quota.decide("acme", self.model.limits, id_, decision, tokens=tokens, deadline_ms=deadline_ms)
            )
            self.heard(id_, real, self.model.decide(id_, decision, tokens, deadline_ms))

        @rule(id_=IDS, move=st.integers(1, 3), partition=st.none() | st.integers(0, 7))
        def place(self, id_: str, move: int, partition: int | None) -> None:
            to = None if partition is None else routed(partition, Lane.STANDARD)
            real = self.runner.run(self.quota.place("acme", self.model.limits, id_, move, to))
            assert real == self.model.place(id_, move, to)

        @rule(id_=IDS)
        def look(self, id_: str) -> None:
            deadline_ms = self.model.now_ms + 1_000
            real = self.runner.run(self.quota.look("acme", self.model.limits, id_, deadline_ms=deadline_ms))
            self.heard(id_, real, self.model.look(id_))

        @rule(id_=IDS, spends=st.booleans())
        def refuse(self, id_: str, spends: bool) -> None:
            real = self.runner.run(
                self.quota.refuse(
                    "acme", self.model.limits, id_, REFUSAL, deadline_ms=self.model.now_ms, spends_request=spends
                )
            )
            self.heard(id_, real, self.model.refuse(id_, REFUSAL, self.model.now_ms, spends_request=spends))

        @rule(id_=IDS, said=st.sampled_from(["refused", "open", "ended"]), tokens=TOKENS, lane=st.sampled_from(LANES))
        def rebuild(self, id_: str, said: str, tokens: int, lane: Lane) -> None:
            """What the log says of a response is put back, into a store that has kept some of it."""
            restored = Restored(
                id_, "acme", said != "open", tokens, self.model.now_ms + 1_000,
                None if said == "refused" else ROUTE.model_copy(update={"lane": lane}), REFUSAL,
            )  # fmt: skip
            assert self.runner.run(self.quota.restore(self.epoch, restored, self.model.limits)) == (
                self.model.restore(restored)
            )
            if said == "ended":
                self.settled.add(id_)

        @rule(id_=IDS, choice=st.integers(0, 1), used=st.integers(0, 3_000))
        def settle(self, id_: str, choice: int, used: int) -> None:
            real = self.runner.run(self.quota.settle("acme", self.model.limits, id_, choice, used))
            assert real == self.model.settle(id_, choice, used)
            if real == "settled":
                self.settled.add(id_)

        @rule(id_=IDS)
        def refund(self, id_: str) -> None:
            real = self.runner.run(self.quota.refund("acme", self.model.limits, id_))
            assert real == self.model.refund(id_)

        @invariant()
        def as_many_are_active(self) -> None:
            if hasattr(self, "model"):
                real = self.runner.run(self.quota.active_count("acme"))
                assert real == len(self.model.active)

        @invariant()
        def the_bucket_is_never_over_full(self) -> None:
            if hasattr(self, "model"):
                assert self.model.tokens <= self.model.limits.tokens_per_minute

    run_state_machine_as_test(
        Sequences,
        settings=settings(
            max_examples=60, stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )  # fmt: skip
