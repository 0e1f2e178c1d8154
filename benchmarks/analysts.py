"""`python -m benchmarks.analysts ADDRESS SECONDS`: many analysts, each of whom asks again as soon as it was answered.

Who they are comes in as a JSON list of names and passwords, their statement as the list's last entry; how long each
answer took (ms) goes out as another. A process of its own, as analysts' programs are: it takes no turn of billing's.
"""

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx


def _ask(address: str, user: tuple[str, str], statement: str, until_s: float) -> list[float]:
    took_ms = []
    with httpx.Client(base_url=address, timeout=120, auth=user) as client:
        while (began_s := time.monotonic()) < until_s:
            client.post("/", content=statement.encode()).raise_for_status()
            took_ms.append((time.monotonic() - began_s) * 1_000)
    return took_ms


def main(address: str, seconds: float, users: Sequence[tuple[str, str]], statement: str) -> list[float]:
    until_s = time.monotonic() + seconds
    with ThreadPoolExecutor(len(users)) as analysts:
        asking = [analysts.submit(_ask, address, user, statement, until_s) for user in users]
        return [took_ms for asked in asking for took_ms in asked.result()]


if __name__ == "__main__":
    *names, asked = json.load(sys.stdin)
    json.dump(main(sys.argv[1], float(sys.argv[2]), [(name, password) for name, password in names], asked), sys.stdout)
