"""The pages where requests wait: who asked sees how many are before it, who operates what waits in each lane."""

import asyncio
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from streams.gateway import queues
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, Stack
from tests.unit.streams.gateway.test_operations import make_admin
from tests.unit.streams.gateway.test_page_resumes import answer, ask, type_question
from tests.unit.streams.gateway.test_queue_told import BEFORE, beat

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]


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


async def test_who_operates_sees_what_waits_in_each_lane(stack: Stack, tmp_path: Path) -> None:
    make_admin(stack)
    with headless_browser(tmp_path) as browser:
        await asyncio.to_thread(browser.get, f"{stack.url}/operations")
        beat(stack, 100)
        await asyncio.to_thread(browser.find_element(By.ID, "key").send_keys, KEY, Keys.ENTER)
        await sees(browser, "flow", "9 wait")
