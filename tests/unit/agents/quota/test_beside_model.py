"""Limits of keys and models, and budgets: whatever is called in whatever order, the script answers as a model does, and
no hard budget is exceeded."""

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis

from agents.quota.beside import Account, Beside, Further, Hold, Spent
from agents.quota.port import Decided, Finished, Refunded, Refusal, Reserved
from agents.quota.store import RedisQuota
from schemas.admission import Decision
from schemas.endings import EndingCode
from schemas.month import Month
from schemas.request import Lane
from streams.directory import Limits, ScopedLimits
from tests.unit.agents.quota.quota_model import TenantModel

NOW = 1_790_000_000_000
MONTH = Month.at(NOW)
ROUTE = Decision(pool="default", lane=Lane.STANDARD, lane_partition=1, generated_partition=2)
REFUSAL = Refusal(code=EndingCode.PROMPT_REFUSED, param="messages")
KEYS = ("k1", "k2")
MODELS = ("m1", "m2")
RESPONSES = {f"r{n}": (KEYS[n % 2], MODELS[n // 2 % 2]) for n in range(6)}
IDS = st.sampled_from(sorted(RESPONSES))
PROJECT = "p"


@dataclass
class Money:
    """What is held of one response: nothing of it is given to others before all of its choices are settled."""

    nano: int
    choices: int


def accounts(id_: str) -> tuple[str, str, str]:
    return "tenant", f"project:{PROJECT}", f"key:{RESPONSES[id_][0]}"


def test_any_sequence_of_calls_by_two_processes_keeps_every_limit_and_every_budget(redis_url: str) -> None:
    class Sequences(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.runner = asyncio.Runner()
            self.client = Redis.from_url(redis_url, retry=None)
            region = f"t{uuid.uuid4().hex[:10]}"
            self.stores = [RedisQuota(self.client, region, keep_ms=10**9, now_ms=NOW) for _ in range(2)]
            self.turn = 0
            self.held: dict[str, Money] = {}
            self.spent: Counter[str] = Counter()
            self.charged: set[tuple[str, int]] = set()
            self.offset = 0

        @property
        def quota(self) -> RedisQuota:
            """Whichever process it comes to."""
            self.turn += 1
            return self.stores[self.turn % 2]

        @initialize(
            rates=st.lists(st.integers(1, 200), min_size=3, max_size=3),
            tokens=st.lists(st.integers(1, 200_000), min_size=3, max_size=3),
            concurrency=st.lists(st.integers(1, 4), min_size=3, max_size=3),
            budgets=st.lists(st.integers(0, 5_000), min_size=2, max_size=2),
        )
        def begin(self, rates: list[int], tokens: list[int], concurrency: list[int], budgets: list[int]) -> None:
            def limits(index: int) -> Limits:
                return Limits(
                    requests_per_minute=rates[index], tokens_per_minute=tokens[index],
                    concurrent_responses=concurrency[index], concurrent_jobs=concurrency[index],
                )  # fmt: skip

            self.buckets = {
                name: TenantModel(limits(index), NOW, keep_ms=10**9)
                for index, name in enumerate(("tenant", "key:k1", "model:m1"))
            }
            self.most = {"tenant": budgets[0], "key:k1": budgets[1]}
            epoch = self.runner.run(self.stores[0].new_epoch())
            self.runner.run(self.stores[0].begin_epoch(epoch, NOW))

        def teardown(self) -> None:
            self.runner.run(self.client.aclose())
            self.runner.close()

        def of(self, id_: str) -> dict[str, TenantModel]:
            key, model = RESPONSES[id_]
            names = ("tenant", f"key:{key}", f"model:{model}")
            return {name: bucket for name, bucket in self.buckets.items() if name in names}

        def beside(self, id_: str, nano: int, choices: int) -> Beside:
            further = tuple(
                Further(name, ScopedLimits(**bucket.limits.model_dump(exclude={"max_output_tokens"})))
                for name, bucket in self.of(id_).items()
                if name != "tenant"
            )
            most = {account: self.most[account] for account in accounts(id_) if account in self.most}
            return Beside(further, Hold(NOW, "USD", nano, choices, PROJECT, RESPONSES[id_][0], most))

        def missing(self, id_: str, nano: int) -> str | None:
            """The account of the budget that has the least left, if that is too little."""
            held = self.held_by_account()
            left = {
                account: self.most[account] - self.spent[account] - held[account]
                for account in accounts(id_)
                if account in self.most
            }
            short = {account: rest for account, rest in left.items() if rest < nano}
            return min(short, key=lambda account: short[account]) if short else None

        def held_by_account(self) -> Counter[str]:
            held: Counter[str] = Counter()
            for id_, money in self.held.items():
                for account in accounts(id_):
                    held[account] += money.nano
            return held

        @rule(ms=st.one_of(st.integers(0, 2_000), st.integers(0, 120_000)))
        def time_passes(self, ms: int) -> None:
            for store in self.stores:
                assert store.now_ms is not None
                store.now_ms += ms
            for bucket in self.buckets.values():
                bucket.now_ms += ms

        @rule(
            id_=IDS, tokens=st.integers(0, 1_500), nano=st.integers(0, 2_000), choices=st.integers(1, 3),
            route=st.sampled_from([None, ROUTE]),
        )  # fmt: skip
        def reserve(self, id_: str, tokens: int, nano: int, choices: int, route: Decision | None) -> None:
            tenant = self.buckets["tenant"]
            deadline_ms = tenant.now_ms + 1_000
            real = self.runner.run(
                self.quota.reserve(
                    "acme", tenant.limits, id_, tokens=tokens, deadline_ms=deadline_ms, decision=route,
                    beside=self.beside(id_, nano, choices),
                )
            )  # fmt: skip
            buckets = self.of(id_)
            for bucket in buckets.values():
                bucket.advance()
            if tenant.stored(id_) is not None:
                assert real == tenant.reserve(id_, tokens, deadline_ms, decision=route) or isinstance(real, Refusal)
                return
            lacking = {name: why for name, bucket in buckets.items() if (why := bucket.lacks(tokens, Lane.STANDARD))}
            if lacking:
                binding = max(lacking, key=lambda name: lacking[name][1])
                assert isinstance(real, Refusal)
                assert (real.code, real.retry_after_ms, real.limited) == (*lacking[binding], binding)
                figures = buckets[binding].figures()
                assert real.limits == figures, "of the bucket that binds"
                assert binding.partition(":")[0] in real.message
                tenant.remember_refusal(id_, real)
            elif (account := self.missing(id_, nano)) is not None:
                assert isinstance(real, Refusal)
                assert (real.code, real.limited) == (EndingCode.BUDGET_EXHAUSTED, account)
                assert real.held == (nano + self.spent[account] <= self.most[account])
                assert real.spent == (self.spent[account] >= self.most[account])
                tenant.remember_refusal(id_, real)
            else:
                for bucket in buckets.values():
                    bucket.reserve(id_, tokens, deadline_ms, decision=route)
                self.held[id_] = Money(nano, choices)
                assert isinstance(real, Reserved if route is None else Decided)
                least = min(buckets.values(), key=lambda bucket: bucket.figures()["requests_remaining"]).figures()
                assert real.limits["requests_remaining"] == least["requests_remaining"]

        @rule(id_=IDS, choice=st.integers(0, 2), used=st.integers(0, 1_500), nano=st.integers(0, 2_000))
        def settle(self, id_: str, choice: int, used: int, nano: int) -> None:
            """What is charged was held: it never costs more than it may at most."""
            held = self.held.get(id_)
            nano = min(nano, 0 if held is None or choice >= held.choices else held.nano)
            spent = Spent(MONTH, "USD", nano, PROJECT, RESPONSES[id_][0], choice, self.offset) if nano else None
            self.offset += 1
            tenant = self.buckets["tenant"]
            real = self.runner.run(self.quota.settle("acme", tenant.limits, id_, choice, used, spent))
            assert real == tenant.settle(id_, choice, used)
            for name, bucket in self.of(id_).items():
                if name != "tenant":
                    bucket.settle(id_, choice, used)
            if real != "settled":
                return
            for account in accounts(id_):
                self.spent[account] += nano
            if held is not None:
                held.choices -= 1
                held.nano -= nano
                if held.choices == 0:
                    del self.held[id_]

        @rule(id_=IDS)
        def refund(self, id_: str) -> None:
            tenant = self.buckets["tenant"]
            real = self.runner.run(self.quota.refund("acme", tenant.limits, id_))
            assert real == tenant.refund(id_)
            for name, bucket in self.of(id_).items():
                if name != "tenant":
                    bucket.refund(id_)
            was = tenant.reservations.get(id_)
            if was is None or (was.decision is None and was.state != "settled"):
                self.held.pop(id_, None)

        @rule(id_=IDS)
        def refuse(self, id_: str) -> None:
            tenant = self.buckets["tenant"]
            real = self.runner.run(
                self.quota.refuse("acme", tenant.limits, id_, REFUSAL, deadline_ms=tenant.now_ms)
            )  # fmt: skip
            was = tenant.reservations.get(id_)
            expected = tenant.refuse(id_, REFUSAL, tenant.now_ms)
            assert type(real) is type(expected)
            assert not isinstance(real, Decided | Finished | Refunded) or was is not None
            if was is not None and isinstance(expected, Refusal):
                self.held.pop(id_, None)
                for name, bucket in self.of(id_).items():
                    if name != "tenant" and id_ in bucket.reservations:
                        bucket.refuse(id_, REFUSAL, tenant.now_ms)

        @invariant()
        def no_budget_is_exceeded(self) -> None:
            if not hasattr(self, "most"):
                return
            sums = self.runner.run(self.stores[0].sums("acme", str(MONTH), "USD"))
            held = self.held_by_account()
            for account in {*sums.accounts, *self.spent}:
                assert sums.of(account) == Account(self.spent[account], held[account])
            for account, most in self.most.items():
                assert sums.of(account).spent + sums.of(account).held <= most

    run_state_machine_as_test(
        Sequences,
        settings=settings(
            max_examples=60, stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )  # fmt: skip
