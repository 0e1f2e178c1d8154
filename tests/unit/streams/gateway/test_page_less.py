"""On the chat page stands what an answer was not given of what was asked for: its model, and its length."""

from pathlib import Path

import pytest

from schemas.brownout import Brownout
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.pages import NARROW, WIDE, ChatPage, beside
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, Stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]
LESS = {"fallback": Fallback(asked="large", reason="preferred"), "brownout": Brownout(level=2, max_tokens=1_024)}
TOLD = "The service is overloaded: tiny answers instead of large, and answers are cut at 1,024 tokens at present."


async def test_who_is_given_less_is_told_while_it_comes_and_when_it_has_come(stack: Stack, tmp_path: Path) -> None:
    with headless_browser(tmp_path) as browser:
        page = await beside(ChatPage, browser, stack.url, tmp_path)
        await beside(page.ready, KEY)
        await beside(page.ask, "How long?")
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, **LESS)
        stack.pipeline.release(request, 1, ["So "])
        await beside(wait_until, lambda: page.texts(".note.less") == [TOLD], "it is told as soon as it is known")
        stack.pipeline.release(request, 2, ["long"])
        stack.pipeline.end(request, 3, EndingCode.COMPLETED, finish_reasons=["length"], **LESS)
        note = await beside(page.until_ended)
        assert "cut at the limit" in note
        for scheme, size in (("light", WIDE), ("dark", NARROW)):
            await beside(page.dress, scheme, size)
            await beside(page.picture, f"less-{scheme}")
            assert not await beside(page.overflows)
        assert page.texts(".note.less") == [TOLD]
        await beside(page.ask, "And now?")
        await stack.pipeline.answer(["As ", "asked"])
        await beside(page.until_ended, 2)
        assert page.texts(".note.less") == [TOLD], "of the first one alone"
        assert page.complaints() == []
