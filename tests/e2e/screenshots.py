"""`python -m tests.e2e.screenshots`: makes the pictures of the documents anew, of a stack with a simulated engine.

They are to be looked at before they are committed.
"""

import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from deploy.local.plan import EMBEDDINGS
from deploy.local.runner import Stack
from deploy.tenants_file import create_api_key
from schemas.usage import UsageEvent
from streams.directory import Role
from streams.topics import DAY_MS
from tests.browser import headless_browser
from tests.e2e.records import put, read_topic, usage_rows
from tests.e2e.stacks import api_key, body, http_client, prepared
from tests.pages import NARROW, ChatPage, Page
from tests.servers import until

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 300_000
SIZE = (1_180, 760)
SCRIPT = """A sluice lets through **as much as the wheel can take**, and no drop twice.

1. A request becomes an event on Kafka.
2. Admission checks it, *before* any GPU works for it.
3. Workers answer lane by lane.

| lane | goes |
|---|---|
| interactive | first |
| batch | when there is room |

```python
for event in client.responses.create(model="sluice-tiny", input="Hello", stream=True):
    print(event.sequence_number, event)
```
"""
END = "§"
"""At which the script's answers stop, so that it is told once."""
WORKED_OUT = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"const": "6 * 7"}}, "required": ["expression"]},
    },
}
"""The simulated engine says the smallest thing that fits: here what a model would."""
REFUSED = body(max_tokens=100_000)
STREAMED = body(max_tokens=120, min_tokens=100, stream=True)
ASKED, DAYS = 12 + 6 + 5 + 8, 30
LOAD = 6
"""Clients that ask while the flow is pictured."""


@contextmanager
def load(stack: Stack) -> Iterator[None]:
    """Some that ask all the time, and one whose requests are refused now and then."""
    over = threading.Event()

    def ask(number: int) -> None:
        tenant = ("demo", "north", "south")[number % 3]
        with http_client(stack, tenant) as client:
            while not over.is_set():
                try:
                    client.post("/v1/chat/completions", json=REFUSED if number == 0 else STREAMED)
                except httpx.HTTPError:
                    over.wait(0.5)
                over.wait(1.5 if number == 0 else 0.2)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(LOAD)]
    for each in clients:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in clients:
            each.join()


def keep(page: Page, name: str) -> None:
    page.settle()
    picture = page.picture(name)
    size = picture.stat().st_size
    print(f"{picture}  {size:,} bytes")
    assert size < MAX_BYTES, "too large to be committed"


def picture_chat(page: ChatPage, stack: Stack) -> None:
    page.dress("light", SIZE)
    page.ready(api_key(stack))
    page.asks_for({"stop": [END]})
    for number, question in enumerate(("How are jobs kept out of each other's way?", "What does a sluice do?")):
        if number:
            page["fresh"].click()
        page.ask(question)
        page.until_ended()
    keep(page, "chat")
    page["calculator"].click()
    page.asks_for({"tools": [WORKED_OUT]})
    page.ask("And what is 6 times 7?")
    page.until_there(".tool-result")
    keep(page, "chat-tool")
    page.press(".decline")
    page.until_ended(3)
    page.browser.refresh()
    page.ready(api_key(stack))
    page.asks_for({"stop": [END]})
    page.dress("dark", NARROW)
    page.ask("What does a sluice do?")
    page.until_ended()
    keep(page, "chat-phone")


def picture_operations(page: Page, key: str) -> None:
    page.dress("light", (1_180, 1_300))
    page.connect(key)
    page.until_says("status", "live")
    until(lambda: len(page.all("path.flows")) > 3, "it flows", 60)
    until(lambda: len(page.all("#recent tbody tr")) > 12, "much has ended", 60)
    until(lambda: len(page.all("#shares tbody tr")) > 2, "each tenant was given something", 60)
    keep(page, "operations")


def ask_in_all_ways(stack: Stack) -> None:
    """By two keys, of two models, in two lanes."""
    keys = {name: create_api_key(stack.data.tenants_file, "demo", name) for name in ("website", "search")}
    asked = [
        ("website", "chat/completions", body(max_tokens=90), 12),
        ("website", "chat/completions", body(max_tokens=60, service_tier="batch"), 6),
        ("search", "chat/completions", body(max_tokens=30), 5),
        ("search", "embeddings", {"model": "sluice-embed", "input": [SCRIPT] * 16}, 8),
    ]
    for name, path, asks, times in asked:
        with http_client(stack) as client:
            for _ in range(times):
                answer = client.post(f"/v1/{path}", json=asks, headers={"authorization": f"Bearer {keys[name]}"})
                answer.raise_for_status()


def tell_again_of_days_before(stack: Stack) -> None:
    """The bills of what was just asked, some of them for each day of a month: nobody waits so long for a picture."""
    chance, usage, told = random.Random(7), stack.plan.settings.topics.usage.name, ASKED
    until(lambda: len(bills_of(stack)) >= ASKED, "all is billed", 60)
    bills = bills_of(stack)[:ASKED]
    for day in range(1, DAYS):
        weekday = (datetime.now(UTC) - timedelta(days=day)).weekday()
        share = (0.9 if weekday < 5 else 0.3) * (1 - 0.5 * day / DAYS)
        for bill in bills:
            if chance.random() < share:
                response_id = f"{bill.response_id[:-8]}{chance.getrandbits(32):08x}"
                times = ("accepted_at_ms", "first_token_at_ms", "ended_at_ms")
                then = {name: getattr(bill, name) - day * DAY_MS for name in times if getattr(bill, name)}
                again = bill.model_copy(update={**then, "response_id": response_id, "stage_ms": {}})
                put(stack, usage, again.encode(), key=response_id)
                told += 1
    until(lambda: len(usage_rows(stack, "tenant_id = 'demo'")) >= told, "all is stored", 60)


def bills_of(stack: Stack) -> list[UsageEvent]:
    """Of the tenant `demo`, in the order of the log."""
    told = read_topic(stack, stack.plan.settings.topics.usage.name)
    return [
        UsageEvent.model_validate_json(value)
        for value, record in told
        if record["type"] == "usage" and record["scope"]["tenant_id"] == "demo"
    ]


def picture_usage(page: Page, key: str) -> None:
    page.dress("light", (1_180, 1_000))
    page.connect(key)
    page.until_says("status", "connected")
    page.run("const period = document.getElementById('period'); period.value = 'month';"
             "period.dispatchEvent(new Event('change', {bubbles: true}));")  # fmt: skip
    page.until_there("#key_id rect", DAYS)
    keep(page, "usage")


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="sluice-")))
        engine: dict[str, bool | int | float | str] = {
            "ttft_ms": 40.0, "inter_token_ms": 12.0, "step_ms": 5.0, "min_output_tokens": 2_000,
            "max_output_tokens": 2_000, "script": SCRIPT + END,
        }  # fmt: skip
        stack = running.enter_context(prepared(folder / "stack", engine, added=(EMBEDDINGS,)))
        admin = create_api_key(stack.data.tenants_file, "demo", "operator", role=Role.ADMIN)
        analyst = create_api_key(stack.data.tenants_file, "demo", "figures", role=Role.ANALYST)
        browser = running.enter_context(headless_browser(folder / "chromium"))
        ask_in_all_ways(stack)
        tell_again_of_days_before(stack)
        picture_usage(Page(browser, f"{stack.gateway_url}/usage", IMAGES), analyst)
        picture_chat(ChatPage(browser, stack.gateway_url, IMAGES), stack)
        running.enter_context(load(stack))
        picture_operations(Page(browser, f"{stack.gateway_url}/operations", IMAGES), admin)
    return 0


if __name__ == "__main__":
    sys.exit(main())
