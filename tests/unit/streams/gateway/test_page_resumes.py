"""The chat page at a gateway that cannot serve its answer for a while: it waits as advised, then shows all of it."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from streams.gateway.closing import CloseReason
from streams.gateway.service.service import Gateway
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, unread, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]
RESUMES = 3


def ask(browser: Chrome, url: str) -> None:
    listen = (
        "const plain = WebSocket.prototype.send; window.shown = [];"
        "WebSocket.prototype.send = function (text) {"
        " const message = JSON.parse(text); if (message.type === 'auth') window.shown.push(message.api_key);"
        " plain.call(this, text); };"
    )
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": listen})
    browser.get(url)
    browser.find_element(By.ID, "key").send_keys(KEY, Keys.ENTER)


def type_question(browser: Chrome) -> bool:
    field = browser.find_element(By.ID, "text")
    if "connected" not in browser.find_element(By.ID, "status").text or not field.is_displayed():
        return False
    field.send_keys("Hello", Keys.ENTER)
    return True


def answer(browser: Chrome) -> str:
    return browser.find_element(By.CSS_SELECTOR, ".turn.assistant .text").text


async def test_the_page_comes_again_as_advised_and_shows_the_whole_answer(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked_s: list[float] = []
    resume = Gateway.resume

    async def note(gateway: Gateway, *rest: Any, **more: Any) -> Any:
        asked_s.append(asyncio.get_running_loop().time())
        return await resume(gateway, *rest, **more)

    monkeypatch.setattr(Gateway, "resume", note)
    monkeypatch.setattr(stack.runtime.gateway._patience, "_patience_ms", 0)
    with headless_browser(tmp_path) as browser:
        await asyncio.to_thread(ask, browser, stack.url)
        await asyncio.to_thread(wait_until, lambda: type_question(browser), "the question is asked")
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "the page has the first token")
        with monkeypatch.context() as away:
            unread(away, request.reply_to.partition)
            stack.runtime.hub.close_partition(request.reply_to.partition, CloseReason.PARTITION_MOVED)
            await until(lambda: len(asked_s) >= RESUMES, "it comes again and again")
        pauses_s = [later - earlier for earlier, later in pairwise(asked_s)]
        assert min(pauses_s) >= 1.0, "each refusal advises a second at least"
        stack.pipeline.release(request, 2, ["two"])
        stack.pipeline.end(request, 3)
        await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it has ended")
        await asyncio.to_thread(wait_until, lambda: answer(browser) == "one two", "the page shows all of it")
    assert stack.pipeline.cancels() == []


async def test_the_page_keeps_a_token_and_asks_for_the_key_when_its_hour_is_over(stack: Stack, tmp_path: Path) -> None:
    def shown(browser: Chrome) -> str:
        return str(browser.execute_script("return window.shown.at(-1)"))

    def asks_for_the_key(browser: Chrome) -> bool:
        return "The hour is over" in browser.find_element(By.ID, "refusal").text

    def show_the_key(browser: Chrome) -> None:
        browser.find_element(By.ID, "key").send_keys(KEY, Keys.ENTER)

    with headless_browser(tmp_path) as browser:
        await asyncio.to_thread(ask, browser, stack.url)
        await asyncio.to_thread(wait_until, lambda: type_question(browser), "the question is asked")
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        await asyncio.to_thread(wait_until, lambda: answer(browser).startswith("one"), "the page has the first token")
        assert (await asyncio.to_thread(shown, browser)).startswith("st-sluice-")
        assert KEY not in await asyncio.to_thread(lambda: browser.page_source)
        for socket in list(stack.runtime._sockets._open):
            socket._close(CloseReason.TOKEN_EXPIRED)
        await asyncio.to_thread(wait_until, lambda: asks_for_the_key(browser), "the page asks for the key again")
        stack.pipeline.release(request, 2, ["two"])
        await asyncio.to_thread(show_the_key, browser)
        await asyncio.to_thread(wait_until, lambda: answer(browser) == "one two", "the page goes on where it was")
        assert (await asyncio.to_thread(shown, browser)).startswith("st-sluice-")
        stack.pipeline.end(request, 3)
        await asyncio.to_thread(wait_until, lambda: "out" in note(browser), "the page shows its end")


def note(browser: Chrome) -> str:
    notes = browser.find_elements(By.CSS_SELECTOR, ".turn.assistant .note.used")
    return notes[-1].text if notes else ""
