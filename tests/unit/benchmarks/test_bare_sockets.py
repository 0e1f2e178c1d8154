"""The baseline of a gateway alone says what a gateway would, in order, for as long as somebody listens."""

import asyncio
import os
import subprocess
import sys

import orjson
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.stacks import process_group

PIPE = subprocess.PIPE


async def first_messages(client: ClientConnection) -> list[dict[str, object]]:
    return [orjson.loads(await client.recv()) for _ in range(4)]


async def test_each_socket_has_its_tokens_without_a_gap_until_one_leaves() -> None:
    command = [sys.executable, "-m", "benchmarks.bare_sockets", "2", "100", "5"]
    with process_group(command, os.environ, stdin=PIPE, stdout=PIPE, text=True) as bare:
        assert bare.stdin is not None
        assert bare.stdout is not None
        url = f"ws://127.0.0.1:{int(await asyncio.to_thread(bare.stdout.readline))}"
        dialled = (connect(url, proxy=None, close_timeout=0.1) for _ in range(2))  # it says no goodbye
        async with asyncio.timeout(60), next(dialled) as one, next(dialled) as other:
            for client in (one, other):
                await client.send("anything")
            bare.stdin.write("now\n")
            bare.stdin.flush()
            for started, *deltas in await asyncio.gather(first_messages(one), first_messages(other)):
                assert started["type"] == "started"
                assert [each["first_sequence"] for each in deltas] == [1, 6, 11]
                assert [each["sequence_number"] for each in deltas] == [5, 10, 15]
                assert {each["response_id"] for each in deltas} == {started["response_id"]}
        assert await asyncio.to_thread(bare.stdout.read) == "", "it has ended"
