"""How the dataflow stands, for who operates it: looked at only while somebody watches."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from schemas.endings import ENDINGS, EndingCode
from schemas.request import LANES
from streams.clocks import monotonic_ms, now_ms
from streams.gateway.fan_out.hub import Hub
from streams.gateway.operations.eyes import Eyes, groups_of, shown_topics
from streams.gateway.operations.flow import Look, per_second, within_window, written_per_second
from streams.gateway.operations.recent import WINDOW_MS, RecentAnswers
from streams.gateway.operations.snapshot import (
    EndingCount,
    FirstTokenTimes,
    GatewayNow,
    GroupLag,
    LaneFlow,
    OperationsNow,
    RecentEnding,
    TopicFlow,
)
from streams.gateway.service.circuit import Circuits
from streams.log.port import LogError
from streams.log.watch import Lag, lag_by_topic
from streams.pools_now import PoolsSeen, WorkerNow, lane_now, pool_now, shares_now, worker_now
from streams.topics import Topics

LOOK_EVERY_S: Final = 2.0
LINGER_MS: Final = 15_000
"""How long it looks on after the last question."""
MAX_LOOKS: Final = 16
MAX_WORKERS: Final = 512
"""That are shown; a region of more wants another tool."""
FORGOTTEN_MS: Final = 600_000
"""A worker that was not heard for so long is shown no more."""
SHOWN_ENDINGS: Final = 50

_log = structlog.get_logger()


class Operations:
    """`now` says what is known, at once; `run` looks beside it, in a thread of its own, never two looks at a time."""

    def __init__(
        self, region: str, gateway_id: str, topics: Topics, models: Callable[[], Collection[str]],
        open_eyes: Callable[[], Eyes], hub: Hub, recent: RecentAnswers, circuits: Circuits,
    ) -> None:  # fmt: skip
        """`open_eyes` may raise LogError."""
        self._region = region
        self._gateway_id = gateway_id
        self._topics = topics
        self._models = models
        self._open_eyes = open_eyes
        self._hub = hub
        self._recent = recent
        self._circuits = circuits
        self._asked = asyncio.Event()
        self._asked_at_ms = 0
        self._looks: deque[Look] = deque(maxlen=MAX_LOOKS)
        self._seen = PoolsSeen()
        self._failed = False

    def now(self) -> OperationsNow:
        self._asked_at_ms = monotonic_ms()
        self._asked.set()
        at_ms = now_ms()
        looks = within_window(self._looks)
        rates = written_per_second(looks[0], looks[-1]) if looks else {}
        lag = lag_by_topic(looks[-1].sight.committed, looks[-1].sight.ends) if looks else {}
        return OperationsNow(
            at_ms=at_ms, region=self._region,
            log_state="unavailable" if self._failed else "seen" if looks else "looking",
            looked_ago_ms=monotonic_ms() - looks[-1].at_ms if looks else None,
            topics=self._topic_flows(rates), groups=self._group_lags(lag), lanes=self._lane_flows(rates, lag),
            pools=[pool_now(pool, self._seen, at_ms) for pool in self._topics.pools],
            shares=[share for pool in self._topics.pools for share in shares_now(pool, self._seen)],
            workers=self._workers(at_ms),
            gateway=self._gateway(looks),
            first_token=FirstTokenTimes(
                window_s=WINDOW_MS // 1_000, **self._recent.first_tokens(at_ms)._asdict()
            ),
            endings=[
                EndingCount(code=code.value, reason=_reason(code), count=count, is_error=ENDINGS[code].is_error)
                for code, count in self._recent.counts(at_ms).most_common()
            ],
            recent_endings=self._endings(at_ms),
        )  # fmt: skip

    def _topic_flows(self, rates: Mapping[str, float]) -> list[TopicFlow]:
        return [
            TopicFlow(topic=self._own_name(topic.name), records_per_s=rates.get(topic.name))
            for topic in shown_topics(self._topics)
        ]

    def _group_lags(self, lag: Lag) -> list[GroupLag]:
        processes = groups_of(self._topics)
        return [
            GroupLag(group=processes[group], topic=self._own_name(topic), lag=records)
            for group, topics in lag.items()
            for topic, records in topics.items()
        ]

    def _lane_flows(self, rates: Mapping[str, float], lag: Lag) -> list[LaneFlow]:
        behind = {topic: records for topics in lag.values() for topic, records in topics.items()}
        return [
            LaneFlow(
                **lane_now(pool, lane, self._seen).model_dump(), records_per_s=rates.get(name),
                open=behind.get(name, 0),
            )
            for pool in self._topics.pools
            for lane in LANES
            for name in (self._topics.lane(pool, lane).name,)
        ]  # fmt: skip

    def _workers(self, at_ms: int) -> list[WorkerNow]:
        heard = [worker for worker in self._seen.workers if at_ms - worker.beat_at_ms < FORGOTTEN_MS]
        newest = sorted(heard, key=lambda each: each.beat_at_ms)[-MAX_WORKERS:]
        return [worker_now(worker, at_ms) for worker in sorted(newest, key=lambda each: each.worker_id)]

    def _own_name(self, topic: str) -> str:
        return topic.removeprefix(f"{self._region}.")

    def _gateway(self, looks: Sequence[Look]) -> GatewayNow:
        rate = None
        if looks:
            first, last = looks[0], looks[-1]
            rate = per_second(first.delivered_tokens, last.delivered_tokens, last.at_ms - first.at_ms)
        return GatewayNow(
            gateway_id=self._gateway_id, open_responses=self._hub.open_responses, viewers=self._hub.viewers,
            delivered_tokens_per_s=rate, open_circuits=[name for name, is_open in self._circuits.items() if is_open()],
        )  # fmt: skip

    def _endings(self, at_ms: int) -> list[RecentEnding]:
        known = self._models()
        return [
            RecentEnding(
                at_ms=each.at_ms, code=each.code.value, reason=_reason(each.code), is_error=ENDINGS[each.code].is_error,
                # Of a refused request it is what the client wrote.
                model=each.model if each.model in known else "", completion_tokens=each.completion_tokens,
            )
            for each in self._recent.endings(at_ms, SHOWN_ENDINGS)
        ]  # fmt: skip

    async def run(self) -> None:
        """Until cancelled."""
        thread = ThreadPoolExecutor(1, "operations")
        try:
            while True:
                await self._asked.wait()
                await self._watch(thread)
                self._asked.clear()
                self._looks.clear()
                self._failed = False
        finally:
            thread.shutdown(wait=False)

    async def _watch(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        eyes: Eyes | None = None
        try:
            while monotonic_ms() - self._asked_at_ms < LINGER_MS:
                try:
                    if eyes is None:
                        eyes = await loop.run_in_executor(thread, self._open_eyes)
                    sight, seen = await loop.run_in_executor(thread, eyes.look)
                except LogError as error:
                    self._failed = True
                    _log.warning("operations_look_failed", why=str(error), repeats=True)
                else:
                    self._failed = False
                    self._looks.append(Look(monotonic_ms(), sight, self._hub.delivered_tokens))
                    self._seen = seen
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if eyes is not None:
                # After a look that may still run: both are the thread's.
                thread.submit(eyes.close)


def _reason(code: EndingCode) -> str:
    return ENDINGS[code].message or "The answer is complete."
