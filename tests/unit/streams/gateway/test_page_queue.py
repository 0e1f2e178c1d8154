"""The pages where requests wait: who asked sees how many are before it, who operates what waits in each lane."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from schemas.brownout import PoolLevel
from streams.clocks import now_ms
from streams.directory import Pool
from streams.gateway import queues
from streams.settings import Settings
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.pages import Page, beside
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, memory_log, serving
from tests.unit.streams.gateway.test_operations import make_admin
from tests.unit.streams.gateway.test_page_resumes import answer, ask, type_question
from tests.unit.streams.gateway.test_queue_told import BEFORE, beat

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]

CUT = """return [...document.querySelectorAll(".wide")]
    .filter(each => each.scrollWidth > each.clientWidth)
    .map(each => each.id)"""


def text_of(browser: Chrome, element_id: str) -> str:
    return browser.find_element(By.ID, element_id).text


async def sees(browser: Chrome, element_id: str, text: str) -> None:
    await asyncio.to_thread(wait_until, lambda: text in text_of(browser, element_id), f"the page says {text!r}")


async def test_who_asked_sees_how_many_are_before_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(queues, "LOOK_EVERY_S", 0.02)
    with headless_browser(tmp_path) as browser:
        await asyncio.to_thread(ask, browser, stack.url)
        await asyncio.to_thread(wait_until, lambda: type_question(browser), "the question is asked")
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, queued=BEFORE)
        await sees(browser, "status", "6 before you, about 4 s")
        beat(stack, 103)
        await sees(browser, "status", "3 before you, about 2 s")
        beat(stack, 106)
        await sees(browser, "status", "you are next, about 1 s")
        stack.pipeline.release(request, 1, ["one "])
        await sees(browser, "status", "answering")
        stack.pipeline.release(request, 2, ["two"])
        stack.pipeline.end(request, 3)
        await asyncio.to_thread(wait_until, lambda: answer(browser) == "one two", "the page shows all of it")
        await sees(browser, "status", "connected")


async def test_who_operates_sees_what_waits_who_was_given_what_and_how_far_a_pool_is_degraded(
    stack: Stack, tmp_path: Path
) -> None:
    make_admin(stack)
    waits: dict[str, Any] = {"queues": {"standard": {"waiting": 9, "oldest_ms": 75_000}}}
    level = PoolLevel(pool="default", level=2, since_ms=1_790_000_000_000, why="too late")
    with headless_browser(tmp_path) as browser:
        page = await beside(Page, browser, f"{stack.url}/operations", tmp_path)
        beat(stack, 100, **waits, given_of={"standard": {"acme": 10}})
        await beside(page.connect, KEY)
        await sees(browser, "flow", "9 wait")
        assert page.texts("#lanes tr:nth-child(2) td") == ["default", "standard", "9", "75 s", "–", "9", "0"]
        assert page.texts("#pools td")[:3] == ["default", "level 0", "1 of 1 ready"]
        await sees(browser, "shares", "No pool has given")
        beat(stack, 100, **waits, given_of={"standard": {"acme": 40, "umbrella": 10}}, beat_at_ms=now_ms() + 1)
        await sees(browser, "shares", "umbrella")
        assert page.texts("#shares td") == [
            "default", " 75 %", "acme", "30", "default", " 25 %", "umbrella", "10",
        ]  # fmt: skip
        stack.log.append(stack.settings.topics.brownout.name, level.encode(), key="default")
        await sees(browser, "pools", "level 2")
        degraded = page.texts("#pools td")
        assert "2026" in degraded[5]
        assert degraded[6] == "too late"


async def test_every_worker_stands_by_what_it_reads_with_its_pool_and_what_it_has_given_away(
    settings: Settings, tmp_path: Path
) -> None:
    """The picture has room for eight lanes, and here are twelve."""
    pools = ["default", "large-acme", "large-long", "little"]
    settings = settings.model_copy(update={"pools": [Pool(name=name, engine="simulated") for name in pools]})
    async with serving(settings, memory_log(settings)) as stack:
        make_admin(stack)
        with headless_browser(tmp_path) as browser:
            page = await beside(Page, browser, f"{stack.url}/operations", tmp_path)
            for number, pool in enumerate(pools):
                queues = {"standard": {"waiting": 1, "spilled": 2 * number, "left": 9}}
                memory = {"kv_blocks_used": 12_345, "kv_blocks_total": 65_536, "prompt_tokens": 9, "cached_tokens": 9}
                beat(stack, 100, worker_id=f"{pool}-worker-{number}", pool=pool, queues=queues, **memory)
            await beside(page.connect, KEY)
            await sees(browser, "workers", "little-worker-3")
            assert page.texts("#workers td:nth-child(2)") == pools
            assert page.texts("#workers td:nth-child(6)") == ["0", "2", "4", "6"]
            assert {"5 more lanes", "…cme-worker-1"} <= {*page.texts("svg .title")}
            ends = [path.get_attribute("d").split()[-2:] for path in page.all("path.edge")]
            reading = {y for x, y in ends if x == "598"}
            assert len(reading) == len(pools), "each worker is at the end of a line"
            for width in (1_400, 1_000):
                await beside(page.resize, (width, 900))
                assert page.run(CUT) == [], f"nothing is cut at {width} pixels"
                page.picture(f"operations-{width}")
            assert page.complaints() == []
