"""Stands where a worker stands: publishes a message for each stream, again and again, through Centrifugo's API.

`python -m benchmarks.centrifugo_publisher URL STREAMS MESSAGES_PER_S TOKENS_PER_MESSAGE`, the API's key in
`CENTRIFUGO_KEY`; runs until it is ended. Messages have the fields of ours, and the moment at which they were made.
"""

import asyncio
import os
import sys
from time import monotonic, time_ns
from typing import Any

import aiohttp
import orjson

STREAMS_PER_BATCH = 125
WORD = " word"


def channel(stream: int) -> str:
    return f"resp_local-{stream % 8}_{stream:032x}"


def _batch(streams: range, turn: int, tokens: int) -> bytes:
    """`tokens` for each of the streams, in one call."""
    emitted_at_us = time_ns() // 1_000
    commands: list[dict[str, Any]] = [
        {
            "publish": {
                "channel": channel(stream),
                "data": {
                    "type": "delta",
                    "response_id": channel(stream),
                    "first_sequence": turn * tokens + 1,
                    "sequence_number": (turn + 1) * tokens,
                    "choice": 0,
                    "kind": "content",
                    "emitted_at_us": emitted_at_us,
                    "text": WORD * tokens,
                },
            }
        }
        for stream in streams
    ]
    return orjson.dumps({"commands": commands})


async def _publish(url: str, streams: int, messages_per_s: float, tokens: int) -> None:
    headers = {"X-API-Key": os.environ["CENTRIFUGO_KEY"], "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def post(first: int, turn: int) -> None:
            batch = _batch(range(first, min(first + STREAMS_PER_BATCH, streams)), turn, tokens)
            async with session.post(f"{url}/api/batch", data=batch) as response:
                answer = await response.json()
                if response.status != 200 or any("error" in reply for reply in answer["replies"]):
                    raise RuntimeError(f"Centrifugo answered {response.status}: {str(answer)[:200]}")

        began_s, turn = monotonic(), 0
        while True:
            await asyncio.gather(*(post(first, turn) for first in range(0, streams, STREAMS_PER_BATCH)))
            turn += 1
            await asyncio.sleep(max(0.0, began_s + turn * streams / messages_per_s - monotonic()))


if __name__ == "__main__":
    asyncio.run(_publish(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
