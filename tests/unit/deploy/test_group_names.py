"""Consumer groups of several regions on one cluster keep apart."""

from types import SimpleNamespace
from typing import Any

import pytest

import billing_jobs.__main__ as billing
import streams.gateway.__main__ as gateway


class Named:
    """Takes the place of a client of Kafka and remembers its group."""

    def __init__(self, _settings: object, group: str | None, *_rest: object, **_options: object) -> None:
        self.group = group


def settings_of(region: str) -> Any:
    usage = SimpleNamespace(name=f"{region}.usage")
    return SimpleNamespace(
        region=region, kafka=None, gateway=SimpleNamespace(gateway_id="gateway-1"),
        topics=SimpleNamespace(usage=usage, dead_letters=usage),
        billing=SimpleNamespace(batch_rows=1, batch_wait_ms=1, quick_wait_ms=1),
    )  # fmt: skip


def test_gateways_are_a_group_of_their_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "KafkaConsumer", Named)
    clients: Any = gateway.KafkaClients(settings_of("north"))
    assert clients.member().group == "north.gateways"
    assert clients.reader().group is None


def test_billing_is_a_group_of_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers: list[Named] = []

    def sink(*, consumer: Named, **_rest: object) -> None:
        consumers.append(consumer)

    monkeypatch.setattr(billing, "KafkaConsumer", Named)
    monkeypatch.setattr(billing, "KafkaProducer", lambda *_: None)
    monkeypatch.setattr(billing, "Sink", sink)
    store: Any = SimpleNamespace(prices=list, reprice=None, usage_waits=None)
    nothing: Any = None
    billing.make_sink(settings_of("north"), store, nothing, nothing, nothing)
    assert [consumer.group for consumer in consumers] == ["north.billing"]
