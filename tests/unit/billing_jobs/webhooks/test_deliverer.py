"""Alerts reach whoever asked for them: signed, in order, again if need be, and nobody waits for who does not answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.beside import in_thread
from billing_jobs.metrics import BillingMetrics
from billing_jobs.webhooks.deliverer import Deliverer, Receivers
from billing_jobs.webhooks.signatures import receiver_secrets, signed_headers
from schemas.alert import Alert
from streams.directory import Tenant
from streams.keyring import Keyring
from streams.log.memory import MemoryLog
from streams.log.port import TopicPartition
from streams.settings import SettingsError
from tests.unit.billing_jobs.events import NOON_MS

ALERTS, DEAD_LETTERS, GROUP = "local.alerts", "local.dead-letters", "local.alerts"
KEYRING = Keyring((b"secret" * 8,))
OPERATORS, ACMES = "http://127.0.0.1:9/ops?key=1", "http://127.0.0.2:9/acme"
PATIENCE_S = 30.0


@dataclass
class Directory:
    webhook: str = ACMES

    def tenant(self, tenant_id: str) -> Tenant | None:
        """Unchecked, as if the file of an older release were in force."""
        tenant = Tenant.model_construct(tenant_id="acme", alert_webhook=self.webhook)
        return tenant if tenant_id == "acme" else None


@dataclass
class World:
    """A log, receivers that answer as `statuses` says (200 where it says nothing), and a clock."""

    anywhere: bool = True
    keyring: Keyring | None = KEYRING
    acmes: str = ACMES
    statuses: dict[str, list[int | Exception]] = field(default_factory=dict)
    asked: list[httpx.Request] = field(default_factory=list)
    now_ms: int = NOON_MS
    give_up_ms: int = 60_000
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.log = MemoryLog(lambda: self.now_ms)
        self.log.create_topic(ALERTS, 1)
        self.log.create_topic(DEAD_LETTERS, 1)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        left = self.statuses.get(request.url.host, [])
        status = left.pop(0) if left else 200
        if isinstance(status, Exception):
            raise status
        if not status:
            raise httpx.ConnectTimeout("nobody answers", request=request)
        return httpx.Response(status, headers={"set-cookie": "whose=acmes; Path=/"})

    def told(self, host: str) -> list[str]:
        return [each.headers["webhook-id"] for each in self.asked if each.url.host == host]

    def outcome(self, name: str) -> float:
        return self.registry.get_sample_value("sluice_billing_webhooks_total", {"outcome": name}) or 0.0

    def committed(self) -> int | None:
        return self.log.committed(GROUP, TopicPartition(ALERTS, 0)).offset

    def deliverer(self, stop: threading.Event) -> Deliverer:
        return Deliverer(
            open_consumer=lambda: self.log.consumer(GROUP, "webhooks"),
            producer=self.log.producer("letters"),
            receivers=Receivers((OPERATORS,), Directory(self.acmes), self.keyring, self.anywhere, self.give_up_ms),  # type: ignore[arg-type]
            alerts_topic=ALERTS,
            dead_letter_topic=DEAD_LETTERS,
            stop=stop,
            metrics=BillingMetrics(self.registry),
            clock_ms=lambda: self.now_ms,
            transport=httpx.MockTransport(self.answer),
            begin_again_s=0.01,
            poll_s=0.02,
        )

    @contextmanager
    def delivering(self) -> Iterator[None]:
        with in_thread("deliverer", lambda stop: self.deliverer(stop).run()):
            yield


@contextmanager
def ending(stop: threading.Event) -> Iterator[None]:
    """What should end by itself is ended when patience is."""
    timer = threading.Timer(PATIENCE_S, stop.set)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come to it"
        time.sleep(0.01)


def alert(number: int, tenant_id: str = "acme") -> Alert:
    return Alert.raised(
        "budget_threshold", f"budget/{number}", "warning", "80 % are used", since_ms=NOON_MS, told_at_ms=NOON_MS,
        tenant_id=tenant_id,
    )  # fmt: skip


def put(world: World, *alerts: Alert) -> None:
    for each in alerts:
        world.log.append(ALERTS, each.encode(), partition=0)


def test_the_operator_is_told_of_all_and_a_tenant_of_its_own_each_with_its_signature() -> None:
    world = World()
    put(world, alert(1), alert(2, tenant_id=""), alert(3, tenant_id="globex"))
    with world.delivering():
        until(lambda: world.committed() == 3)
    assert world.told("127.0.0.2") == [alert(1).event_id]
    assert world.told("127.0.0.1") == [alert(1).event_id, alert(2, "").event_id, alert(3, "globex").event_id]
    for request in world.asked:
        tenant_id = "acme" if request.url.host == "127.0.0.2" else ""
        expected = signed_headers(
            receiver_secrets(KEYRING, tenant_id), request.headers["webhook-id"], NOON_MS // 1_000, request.content
        )
        assert {name: request.headers[name] for name in expected} == expected
        assert request.headers["host"] == request.url.netloc.decode()
    assert orjson.loads(world.asked[0].content)["data"]["subject"] == "budget/1"


def test_who_does_not_answer_is_asked_again_later_and_holds_up_nobody() -> None:
    world = World(statuses={"127.0.0.2": [0, 503]})
    put(world, alert(1), alert(2))
    with world.delivering():
        until(lambda: len(world.told("127.0.0.1")) == 2 and world.outcome("failed") == 1)
        assert world.committed() in (None, 0)
        for failures in (2, 3):
            world.now_ms += 2_000
            until(lambda failures=failures: len(world.told("127.0.0.2")) >= failures)  # type: ignore[misc]
        until(lambda: world.committed() == 2)
    assert world.told("127.0.0.2") == [alert(1).event_id] * 3 + [alert(2).event_id]
    assert (world.outcome("failed"), world.outcome("taken"), world.outcome("given_up")) == (2, 4, 0)


def test_what_was_not_taken_before_the_process_ended_is_told_by_the_next_under_the_same_id() -> None:
    world = World(statuses={"127.0.0.2": [500]})
    put(world, alert(1))
    with world.delivering():
        until(lambda: world.outcome("failed") == 1)
    world.registry = CollectorRegistry()
    with world.delivering():
        until(lambda: world.committed() == 1)
    assert world.told("127.0.0.2") == [alert(1).event_id] * 2


def test_what_nobody_takes_in_its_time_is_given_up() -> None:
    world = World(statuses={"127.0.0.2": [500] * 9})
    put(world, alert(1))
    with world.delivering():
        until(lambda: world.outcome("failed") == 1)
        world.now_ms += 61_000
        until(lambda: world.committed() == 1)
    assert world.outcome("given_up") == 1


def test_a_tenants_address_that_leads_to_us_is_asked_nothing() -> None:
    world = World(anywhere=False)
    put(world, alert(1))
    with world.delivering():
        until(lambda: world.committed() == 1)
    assert world.told("127.0.0.2") == []
    assert world.told("127.0.0.1") == [alert(1).event_id], "the operator's is believed"
    assert world.outcome("given_up") == 1


def test_a_redirect_is_followed_by_nobody() -> None:
    world = World(statuses={"127.0.0.1": [302]})
    put(world, alert(1, tenant_id=""))
    with world.delivering():
        until(lambda: world.outcome("failed") == 1)
    assert len(world.asked) == 1


def test_what_makes_no_sense_is_a_dead_letter() -> None:
    world = World()
    world.log.append(ALERTS, b"{", partition=0)
    put(world, alert(1))
    with world.delivering():
        until(lambda: world.committed() == 2)
    assert len(world.log.records(DEAD_LETTERS)) == 1


def test_without_a_secret_nobody_is_told_and_what_somebody_asked_for_stays_for_who_has_one() -> None:
    world = World(keyring=None)
    put(world, alert(1))
    stop = threading.Event()
    with ending(stop), pytest.raises(SettingsError, match=r"operator@127\.0\.0\.1 is to be told .* no secret"):
        world.deliverer(stop).run()
    assert (world.asked, world.committed()) == ([], None)
    world.keyring, world.registry = KEYRING, CollectorRegistry()
    with world.delivering():
        until(lambda: world.committed() == 1)
    assert len(world.asked) == 2


@pytest.mark.parametrize(
    "url", ["https://hooks..example.com/x", "https://xn--/", "https://host:99999/", "https://[::1/"]
)
def test_an_address_that_is_none_is_given_up_and_holds_up_nobody(url: str) -> None:
    world = World(acmes=url)
    put(world, alert(1), alert(2))
    with world.delivering():
        until(lambda: world.outcome("given_up") == 1)
        world.now_ms += 2_000
        until(lambda: world.committed() == 2)
    assert (len(world.told("127.0.0.1")), world.outcome("given_up")) == (2, 2)


def test_an_address_that_turns_out_to_be_none_is_given_up_and_an_error_nobody_foresaw_is_tried_again() -> None:
    faults: list[int | Exception] = [UnicodeError("label too long"), RuntimeError("unforeseen")]
    world = World(statuses={"127.0.0.2": faults}, give_up_ms=86_400_000)
    put(world, alert(1), alert(2))

    def is_done_a_moment_later() -> bool:
        world.now_ms += 100
        return world.committed() == 2

    with world.delivering():
        until(is_done_a_moment_later)
    assert world.told("127.0.0.2") == [alert(1).event_id, alert(2).event_id, alert(2).event_id]
    assert (world.outcome("failed"), world.outcome("given_up")) == (2, 1)


def test_what_a_receiver_sets_as_a_cookie_is_sent_to_nobody() -> None:
    world = World(acmes=OPERATORS)
    put(world, alert(1), alert(2))
    with world.delivering():
        until(lambda: world.committed() == 2)
    assert len(world.asked) == 4
    assert not any("cookie" in request.headers for request in world.asked)
