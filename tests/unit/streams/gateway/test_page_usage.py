"""The usage page in a real browser: plots, a table, files, in light and dark, on a telephone and by keys alone."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from schemas.usage_query import BUCKET_S, TOKEN_CLASSES, InvalidQuery, UsageQuery
from streams.gateway.http.usage_reader import UsageBucket, UsagePage
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.pages import NARROW, TIMEOUT_S, WIDE, Page, beside
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, Stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(180), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]
NAMES: dict[str, list[str]] = {
    "model": ["sluice-tiny", "sluice-small", "sluice-embed", *(f"tuned-{n}" for n in range(6))],
    "lane": ["interactive", "standard", "batch"],
    "key_id": ["web", "ios", "nightly-reports", ""],
}
WRONG = "sk-wrong"


class Figures:
    """Of every bucket some, of fewer names the older it is; the last two buckets may still grow."""

    def __init__(self) -> None:
        self.is_away = False

    def page(self, query: UsageQuery) -> UsagePage:
        if self.is_away:
            raise InvalidQuery("group_by", "group_by: more than 10000 results in one bucket; group by less")
        names = NAMES[query.group_by[0]]
        starts = query.bucket_starts()
        buckets = [
            UsageBucket(
                start_time=start,
                end_time=start + BUCKET_S[query.bucket_width],
                estimate=at >= len(starts) - 2,
                results=[self.result(query.group_by[0], name, at, rank) for rank, name in enumerate(names)],
            )
            for at, start in enumerate(starts)
        ]
        return UsagePage(data=buckets, next_start=None, finalized_through=query.end_time * 1_000 - 5_000, lag_records=0)

    def result(self, group: str, name: str, at: int, rank: int) -> dict[str, Any]:
        tokens = (at * 7_919 + 40_000) // (rank + 1)
        counts = dict(zip(TOKEN_CLASSES, (tokens, tokens // 3, tokens // 2, tokens // 9, tokens // 2), strict=True))
        return {group: name, "currency": "USD", "requests": tokens // 100, **counts, "suspense_events": 0,
                "cost_pico": str(tokens * 3_000)}  # fmt: skip


async def test_usage_is_drawn_told_and_saved(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Figures()

    async def usage(query: UsageQuery) -> UsagePage:
        return figures.page(query)

    monkeypatch.setattr(stack.usage, "usage", usage)
    with headless_browser(tmp_path / "chromium") as browser:
        page = await beside(Page, browser, f"{stack.url}/usage", tmp_path)
        await beside(page.connect, WRONG)
        await beside(page.until_says, "refusal", "The API key is missing or wrong.")
        await beside(page["key"].clear)
        await beside(page.connect, KEY)
        await beside(page.until_there, "#model svg rect")
        await beside(_is_all_drawn, page)
        for scheme, size in (("light", WIDE), ("dark", WIDE), ("dark", NARROW), ("light", NARROW)):
            await beside(_fits, page, scheme, size)
        await beside(page.dress, "light", WIDE)
        await beside(_answers_to_keys_alone, page)
        await beside(_saves_files, page, tmp_path)
        figures.is_away = True
        await beside(Select(page["period"]).select_by_value, "week")
        await beside(page.until_says, "failure", "group by less")
        assert "figures cannot be had" in page["status"].text
        figures.is_away = False
        await beside(Select(page["period"]).select_by_value, "hours")
        await beside(page.until_says, "status", "connected")
        assert not page["failure"].is_displayed()
        assert page.complaints() == []
        assert page.kept() == {}, "the browser keeps neither key nor token"


def _is_all_drawn(page: Page) -> None:
    legend = page.texts("#model .legend li")
    assert [each.split()[0] for each in legend] == [
        "sluice-tiny",
        "sluice-small",
        "sluice-embed",
        "tuned-0",
        "tuned-1",
        "4",
    ]
    assert len(page.all("#lane svg rect")) == 3 * 7
    begin = page.run(
        "return [...document.querySelectorAll('.plot text')].map(each => [each.textContent, each.getBBox().x])"
    )
    assert "0.0002 USD" in dict(begin)
    assert [text for text, x in begin if x < 0] == [], "none is cut off"
    assert len(page.all("#model rect.estimate")) == 2 * 6, "the buckets that may still grow are pale"
    assert any(text.startswith("no key") for text in page.texts("#key_id .legend li"))
    said = page.all("#lane svg")[0].get_attribute("aria-label") or ""
    assert said.startswith("Usage by lane: interactive ")
    assert "may still be running" in page["finalized"].text
    sums = dict(zip(page.texts(".figure span"), page.texts(".figure b"), strict=True))
    assert sums["of these cached"] == "25 %"
    assert sums["cost in USD"].startswith("0.")
    first = page.texts("#table tbody tr:first-child td")
    assert first[0].endswith(" ~")
    assert first[-1].endswith(" USD")


def _fits(page: Page, scheme: str, size: tuple[int, int]) -> None:
    page.dress(scheme, size)
    page.settle()
    page.settle()
    page.picture(f"usage-{scheme}-{size[0]}")
    assert not page.overflows(), (scheme, size)
    assert page.is_dark() == (scheme == "dark")
    wider = page.run("return [...document.querySelectorAll('.plot svg')].some(each => each.clientWidth > innerWidth)")
    assert not wider


def _answers_to_keys_alone(page: Page) -> None:
    """Every control is reached by Tab, has a name, and does what it says by keys."""
    page.run("document.getElementById('theme').focus()")
    reached = []
    for _ in range(7):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.browser.switch_to.active_element.get_attribute("id"))
    assert reached[:6] == ["period", "measure", "csv", "parquet", "by", "table"]
    unnamed = page.run(
        "return [...document.querySelectorAll('select, button')].filter(each =>"
        " !each.labels?.length && !each.textContent.trim() && !each.ariaLabel).length"
    )
    assert unnamed == 0
    page["by"].send_keys("lane")
    wait_until(lambda: page.texts("#table th")[1] == "Lane", "the table is by lane", TIMEOUT_S)
    page["measure"].send_keys("requests")
    wait_until(lambda: "USD" not in page.texts("#model .legend b")[0], "requests are drawn", TIMEOUT_S)
    page["period"].send_keys("24")
    wait_until(lambda: len(page.all("#lane svg rect")) == 3 * 24, "hours are drawn", TIMEOUT_S)


def _saves_files(page: Page, folder: Path) -> None:
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    for file_format in ("csv", "parquet"):
        page.browser.find_element(By.ID, file_format).click()
        wait_until(partial(_is_saved, folder, file_format), f"{file_format} is saved", TIMEOUT_S)


def _is_saved(folder: Path, file_format: str) -> bool:
    return [saved.read_text() for saved in folder.glob(f"usage-*.{file_format}")] == [f"a {file_format} file"]
