"""Reads `alerts` and tells them: a member of the group `alerts`, in a thread of its own with its own loop.

1. read: nothing is committed, the next owner reads it again;
2. sent, and taken: sent again under the same id;
3. committed below the first record that is not done with.

Nothing else waits for this, and it ends with nothing but its process.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
import structlog

from billing_jobs.metrics import BillingMetrics
from billing_jobs.webhooks.addresses import Forbidden, Target, check_url, resolve
from billing_jobs.webhooks.deliveries import Deliveries, Message
from billing_jobs.webhooks.signatures import body_of, receiver_secrets, signed_headers
from schemas.alert import Alert
from schemas.codec import Undecodable, decode
from streams.clocks import now_ms
from streams.dead_letters import letter_of
from streams.directory import TenantDirectory
from streams.keyring import Keyring
from streams.log.consumer_thread import ConsumerThread
from streams.log.port import LogConsumer, LogError, LogProducer, LogRecord, TopicPartition
from streams.settings import SettingsError

GROUP = "alerts"
POLL_S = 0.5
BEGIN_AGAIN_S = 10.0
ANSWER_S = 10.0
CONNECT_S = 5.0
GONE = 410
"""What a receiver answers that wants nothing of that any more."""
_FLUSH_S = 10.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Receivers:
    """Who is told of what. Tenants' addresses lead out of here and are encrypted, unless `tenants_anywhere`. Without a
    keyring nobody may be told, and who asks to be holds up all: what is not signed proves nothing.
    """

    operators: Sequence[str]
    directory: TenantDirectory | None
    keyring: Keyring | None
    tenants_anywhere: bool
    give_up_ms: int

    def targets(self, alert: Alert) -> list[Target]:
        found = [Target("", url) for url in self.operators]
        tenant = self.directory.tenant(alert.tenant_id) if self.directory and alert.tenant_id else None
        if tenant is not None and tenant.alert_webhook:
            found.append(Target(tenant.tenant_id, tenant.alert_webhook))
        return found

    def secrets(self, target: Target) -> list[bytes]:
        """Raises SettingsError."""
        if self.keyring is None:
            raise SettingsError(f"{target.name} is to be told of alerts, and there is no secret to sign with")
        return receiver_secrets(self.keyring, target.tenant_id)

    def messages(self, alert: Alert, record: LogRecord) -> Iterator[Message]:
        """Raises SettingsError."""
        body = body_of(alert)
        for target in self.targets(alert):
            self.secrets(target)
            yield Message(target, alert.event_id, body, record.offset, record.timestamp_ms + self.give_up_ms)


class Deliverer:
    """`run` until `stop` is set, in a thread. It raises SettingsError where somebody is to be told and there is no
    secret: the alert is not committed. `open_consumer` makes a member of the group.
    """

    def __init__(
        self,
        *,
        open_consumer: Callable[[], LogConsumer],
        producer: LogProducer,
        receivers: Receivers,
        alerts_topic: str,
        dead_letter_topic: str,
        stop: threading.Event,
        metrics: BillingMetrics,
        clock_ms: Callable[[], int] = now_ms,
        transport: httpx.AsyncBaseTransport | None = None,
        begin_again_s: float = BEGIN_AGAIN_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._open_consumer = open_consumer
        self._producer = producer
        self._receivers = receivers
        self._topic, self._dead_letter_topic = alerts_topic, dead_letter_topic
        self._stop = stop
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._transport = transport
        self._begin_again_s = begin_again_s
        self._poll_s = poll_s
        self._partitions: dict[TopicPartition, Deliveries] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # the jar would be one for all receivers
        async with httpx.AsyncClient(
            timeout=timeout, follow_redirects=False, trust_env=False, cookies=no_cookies, transport=self._transport
        ) as client:
            while not self._stop.is_set():
                try:
                    await self._as_member(client)
                except LogError as error:
                    _log.warning("alerts_wait", error=str(error), repeats=True)
                    await asyncio.to_thread(self._stop.wait, self._begin_again_s)

    async def _as_member(self, client: httpx.AsyncClient) -> None:
        consumer = ConsumerThread(self._open_consumer())
        try:
            await consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
            while not self._stop.is_set():
                await self._step(consumer, client)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)
            self._partitions.clear()
            await consumer.close()

    async def _step(self, consumer: ConsumerThread, client: httpx.AsyncClient) -> None:
        try:
            records = await consumer.poll(self._poll_s)
        except LogError as error:
            if not error.retriable:
                raise
            records = []
        for record in records:
            self._take(record)
        for deliveries in self._partitions.values():
            for message in deliveries.due(self._clock_ms()):
                task = asyncio.create_task(self._tell(client, deliveries, message))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
        self._metrics.webhooks_waiting.set(sum(map(len, self._partitions.values())))
        await self._commit(consumer)

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._partitions[partition] = Deliveries(random.random)

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._partitions.pop(partition, None)

    def _take(self, record: LogRecord) -> None:
        deliveries = self._partitions.get(record.source)
        if deliveries is None:
            return
        try:
            alert = decode(Alert, record.value)
        except Undecodable as error:
            self._dead_letter(record, error)
            deliveries.offer(record.offset, ())
            return
        for message in deliveries.offer(record.offset, self._receivers.messages(alert, record)):
            self._given_up(message, "too many wait for it")

    async def _tell(self, client: httpx.AsyncClient, deliveries: Deliveries, message: Message) -> None:
        try:
            why, for_good = await self._send(client, message)
        except Exception as error:  # noqa: BLE001 - whatever it was, it failed, and no other receiver waits for it
            _log.exception("webhook_broken", target=message.target.name, event_id=message.event_id, repeats=True)
            why, for_good = type(error).__name__, False
        if not why:
            self._metrics.webhooks.labels("taken").inc()
            deliveries.taken(message)
            return
        self._metrics.webhooks.labels("failed").inc()
        if deliveries.failed(message, self._clock_ms(), for_good=for_good):
            self._given_up(message, why)
        else:
            _log.warning("webhook_failed", target=message.target.name, event_id=message.event_id, why=why, repeats=True)

    async def _send(self, client: httpx.AsyncClient, message: Message) -> tuple[str, bool]:
        """Why it was not taken, empty where it was; and whether there is no use in trying again."""
        target = message.target
        is_open = not target.tenant_id or self._receivers.tenants_anywhere
        secrets = self._receivers.secrets(target)
        headers = signed_headers(secrets, message.event_id, self._clock_ms() // 1_000, message.body)
        try:
            async with asyncio.timeout(ANSWER_S + CONNECT_S):
                url = check_url(target.url, is_open=is_open)
                address = await resolve(url, is_open=is_open)
                request = client.build_request(
                    "POST", url.copy_with(host=address), content=message.body,
                    headers={**headers, "host": url.netloc.decode()},
                    extensions={"sni_hostname": url.raw_host.decode()},
                )  # fmt: skip
                # Nothing of the answer is read but its status.
                answer = await client.send(request, stream=True)
                await answer.aclose()
        except Forbidden as error:
            return f"its address is not allowed: {error}", True
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            return type(error).__name__, False
        except (ValueError, httpx.InvalidURL) as error:
            return f"its address is none: {type(error).__name__}", True
        if answer.is_success:
            return "", False
        return f"status {answer.status_code}", answer.status_code == GONE

    def _given_up(self, message: Message, why: str) -> None:
        self._metrics.webhooks.labels("given_up").inc()
        _log.error("webhook_given_up", target=message.target.name, event_id=message.event_id, why=why)

    def _dead_letter(self, record: LogRecord, error: Undecodable) -> None:
        """Raises LogError; then it is read again."""
        letter = letter_of(record, "alerts", error.reason, error.detail, self._clock_ms())
        self._producer.produce(self._dead_letter_topic, letter.encode(), key=letter.key)
        if self._producer.flush(_FLUSH_S):
            raise LogError("a dead letter is not acknowledged yet", retriable=True)

    async def _commit(self, consumer: ConsumerThread) -> None:
        for partition, deliveries in list(self._partitions.items()):
            if (offset := deliveries.offsets.to_commit()) is None:
                continue
            try:
                await consumer.commit({partition: offset})
            except LogError as error:
                if not error.retriable and partition in self._partitions:
                    raise
                continue
            deliveries.offsets.committed(offset)
