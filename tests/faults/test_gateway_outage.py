"""The only broker is killed and comes back: sockets stay open, and streams go on where they were."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from schemas.base import Scope
from schemas.responses import Release, Started, Terminal
from streams.gateway.__main__ import KafkaClients
from streams.ids import parse_response_id
from streams.log.kafka import KafkaProducer
from streams.log.memory import MemoryLog
from streams.provisioning import provision
from streams.settings import KafkaSettings, Settings
from tests.servers import new_kafka_node, running
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, release, serving, started, terminal

SOCKETS, RESPONSES_PER_SOCKET = 4, 5
HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}
DEADLINE_S = 120.0


class PostSafety:
    """Plays the writer of `responses`; what it writes while the broker is away waits in its queue."""

    def __init__(self, settings: Settings) -> None:
        kafka = settings.kafka.model_copy(update={"delivery_timeout_ms": 120_000})
        self._producer = KafkaProducer(kafka, "post-safety")
        self._topic = settings.topics.responses.name

    def write(self, record: Started | Release | Terminal, response_id: str) -> None:
        partition = parse_response_id(response_id).partition
        self._producer.produce(self._topic, record.encode(), key=response_id, partition=partition)

    async def flush(self) -> None:
        assert await asyncio.to_thread(self._producer.flush, DEADLINE_S) == 0


class Viewer:
    """One socket with several responses."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.texts: dict[str, str] = {}
        self.ended: set[str] = set()

    async def ask(self) -> None:
        for number in range(RESPONSES_PER_SOCKET):
            await self._socket.send(json.dumps({"type": "request", "request_id": str(number), "body": HELLO}))
        while len(self.texts) < RESPONSES_PER_SOCKET:
            self.texts[(await self._hear("accepted"))["response_id"]] = ""

    async def _hear(self, *expected: str) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._socket.recv())
        assert message["type"] in expected, message
        return message

    async def read_until(self, text: str) -> None:
        while set(self.texts.values()) != {text}:
            message = await self._hear("started", "delta")
            self.texts[message["response_id"]] += message.get("text", "")

    async def read_to_the_end(self) -> None:
        while len(self.ended) < len(self.texts):
            message = await self._hear("delta", "terminal")
            self.texts[message["response_id"]] += message.get("text", "")
            if message["type"] == "terminal":
                assert message["code"] == "completed"
                self.ended.add(message["response_id"])


@asynccontextmanager
async def gateway_on(kafka: KafkaSettings, redis_url: str) -> AsyncIterator[Stack]:
    settings = gateway_settings(redis_url, "outage", history_flush_ms=100)
    settings = settings.model_copy(update={"kafka": kafka.model_copy(update={"partitions": settings.kafka.partitions})})
    await asyncio.to_thread(provision, settings.kafka, settings.topics.all([]))
    async with serving(settings, MemoryLog(), clients=KafkaClients(settings)) as stack:
        yield stack


@pytest.mark.long
@pytest.mark.parametrize("away_s", [8, 30])
@pytest.mark.timeout(600)
async def test_sockets_survive_the_loss_of_the_broker_and_their_streams_go_on(
    tmp_path: Path, kafka_libs: Path, redis_url: str, away_s: int
) -> None:
    node = await asyncio.to_thread(new_kafka_node, tmp_path / "kafka", kafka_libs)
    async with AsyncExitStack() as held:
        with ExitStack() as first_life:
            kafka, process = await asyncio.to_thread(first_life.enter_context, running(node))
            stack = await held.enter_async_context(gateway_on(kafka, redis_url))
            writer = PostSafety(stack.settings)
            viewers = [
                Viewer(
                    await held.enter_async_context(
                        connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None)
                    )
                )
                for _ in range(SOCKETS)
            ]
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*(viewer.ask() for viewer in viewers))
                responses = [response_id for viewer in viewers for response_id in viewer.texts]
                for response_id in responses:
                    scope = Scope(tenant_id="acme")
                    writer.write(started(response_id, scope), response_id)
                    writer.write(release(response_id, scope, 1, ["before "]), response_id)
                await writer.flush()
                await asyncio.gather(*(viewer.read_until("before ") for viewer in viewers))
            process.kill()
            await asyncio.to_thread(process.wait, 60)
        for response_id in responses:
            writer.write(release(response_id, scope, 2, ["after"]), response_id)
        # The length of the outage is what is tested, nothing is waited for.
        await asyncio.sleep(away_s)
        assert not stack.running.done(), "the gateway runs on"
        with ExitStack() as second_life:
            await asyncio.to_thread(second_life.enter_context, running(node))
            async with asyncio.timeout(DEADLINE_S):
                for response_id in responses:
                    writer.write(terminal(response_id, scope, 3), response_id)
                await writer.flush()
                await asyncio.gather(*(viewer.read_to_the_end() for viewer in viewers))
            assert {text for viewer in viewers for text in viewer.texts.values()} == {"before after"}
            await held.aclose()
