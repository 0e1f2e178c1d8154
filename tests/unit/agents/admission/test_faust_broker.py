"""Whom a client of aiokafka asks where its cluster is, when those of which it was told last are gone."""

from types import SimpleNamespace
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import aiokafka

from agents.admission.faust_broker import ask_those_named

HOST = "127.0.0.1"
BROKERS = {number: aiokafka.structs.BrokerMetadata(number, HOST, number, None) for number in (1, 2, 3)}


class Cluster:
    """Brokers on ports 1, 2 and 3, which say that these are all there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive = {1, 2, 3}
        self.told_of = {1, 2, 3}
        named = ",".join(f"{HOST}:{number}" for number in self.alive)
        self.client: Any = aiokafka.client.AIOKafkaClient(bootstrap_servers=named)
        self.client.cluster._brokers = dict(BROKERS)
        monkeypatch.setattr(self.client, "_get_conn", self._connection)

    async def _connection(self, node_id: object) -> object:
        port = self.client.cluster.broker_metadata(node_id).port
        return SimpleNamespace(send=self._tell) if port in self.alive else None

    async def _tell(self, _request: object) -> object:
        brokers = [tuple(BROKERS[number]) for number in sorted(self.told_of)]
        return SimpleNamespace(API_VERSION=1, brokers=brokers, controller_id=1, topics=[])

    async def update(self) -> bool:
        return bool(await self.client._metadata_update(self.client.cluster, ["requests"]))

    @property
    def known(self) -> set[object]:
        return {broker.nodeId for broker in self.client.cluster.brokers()}


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


async def shrink_to_one_that_dies(cluster: Cluster) -> None:
    """Two brokers are late to the controller, and are back when the third one dies."""
    cluster.told_of = {1}
    assert await cluster.update()
    assert cluster.known == {1}
    cluster.alive, cluster.told_of = {2, 3}, {2, 3}


async def test_it_finds_those_that_live_when_the_only_one_it_knew_has_died(cluster: Cluster) -> None:
    ask_those_named(cluster.client)
    await shrink_to_one_that_dies(cluster)
    assert not await cluster.update()
    assert await cluster.update()
    assert cluster.known == {2, 3}, "and goes by what it is told"


async def test_it_is_patient_while_nobody_lives(cluster: Cluster) -> None:
    ask_those_named(cluster.client)
    await shrink_to_one_that_dies(cluster)
    cluster.alive = set()
    for _ in range(3):
        assert not await cluster.update()
    cluster.alive = {3}
    assert await cluster.update()


async def test_without_that_aiokafka_asks_the_dead_one_for_ever(cluster: Cluster) -> None:
    """Once this fails it has learned it, and needs no help."""
    await shrink_to_one_that_dies(cluster)
    for _ in range(3):
        assert not await cluster.update()
