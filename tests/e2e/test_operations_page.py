"""The operations page in a real browser, of a whole stack at work."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from deploy.local.runner import Stack
from deploy.tenants_file import create_api_key
from streams.directory import Role
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.e2e.stacks import TIMEOUT_S, api_key, body, http_client
from tests.pages import NARROW, WIDE, Page
from tests.servers import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(DRIVER is None, reason=WHY_NOT),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def admin_key(stack: Stack) -> str:
    return create_api_key(stack.data.tenants_file, "demo", "operator", role=Role.ADMIN)


@pytest.fixture
def page(browser: Chrome, stack: Stack, tmp_path: Path) -> Iterator[Page]:
    page = Page(browser, f"{stack.gateway_url}/operations", tmp_path)
    page.dress("light", WIDE)
    yield page
    page.picture("end")
    assert page.complaints() == []
    browser.get("about:blank")


@pytest.fixture
def traffic(stack: Stack) -> Iterator[None]:
    """Somebody asks all the time, and streams."""
    over = threading.Event()

    def ask() -> None:
        with http_client(stack) as client:
            while not over.is_set():
                assert client.post("/v1/chat/completions", json=body("SECRET-Q", stream=True)).status_code == 200

    asking = threading.Thread(target=ask)
    asking.start()
    yield
    over.set()
    asking.join()


@pytest.mark.usefixtures("traffic")
def test_the_flow_is_seen_live(page: Page, admin_key: str) -> None:
    until_taken(page, admin_key)
    page.until_says("status", "live")
    until(lambda: len(page.all("path.flows")) >= 3, "requests, a lane and answers flow", TIMEOUT_S)

    def figures() -> dict[str, str]:
        return dict(zip(page.texts(".figure span"), page.texts(".figure b"), strict=True))

    until(lambda: figures()["requests/s"] not in ("–", "0"), "requests have a rate", TIMEOUT_S)
    until(lambda: figures()["first token p99"].endswith("s"), "first tokens have percentiles", TIMEOUT_S)
    drawn = page.texts("svg .title")
    assert {"requests", "admission", "post-safety", "gateways", "settlement", "billing", "standard"} <= {*drawn}
    assert "worker-1" in drawn
    until(lambda: "ready" in page.texts("#workers td") and page.all("#workers meter"), "workers are shown", TIMEOUT_S)
    pool = [cell.strip() for cell in page.texts("#pools tr:nth-child(1) td")]
    assert (pool[0], pool[1], pool[2]) == ("default", "level 0", "1 of 1 ready")
    assert re.fullmatch(r"[\d,]+ / [1-9][\d,]*", pool[3]), "KV blocks"
    assert re.fullmatch(r"\d+ %", pool[4]), "of its prompts some part was cached"
    lanes = page.texts("#lanes td:nth-child(2)")
    assert lanes == ["interactive", "standard", "batch"] * 2
    interactive = page.texts("#lanes tr:nth-child(1) td")
    assert interactive[2:6] == ["0", "0.0 s", "about 0.0 s", "0"], "waiting, oldest, wait and ahead"
    until(lambda: "demo" in page.texts("#shares td"), "what its tenant was given is shown", TIMEOUT_S)
    assert any(re.fullmatch(r" \d+ %", cell) for cell in page.texts("#shares td"))
    until(lambda: "completed" in page.texts("#reasons td"), "endings are counted by reason", TIMEOUT_S)
    until(lambda: "The answer is complete." in page.texts("#recent td"), "and one by one", TIMEOUT_S)
    lags = {"admission", "gateway", "post-safety", "worker"}
    until(lambda: lags <= {*page.texts("#lag td")}, "groups are shown with their lag", TIMEOUT_S)
    page.picture("live")
    assert "SECRET-Q" not in page.run("return document.documentElement.outerHTML")
    assert not page.overflows()


def until_taken(page: Page, key: str) -> None:
    """The gateway knows a new key within seconds."""

    def taken() -> bool:
        page["key"].clear()
        page.connect(key)
        until(lambda: page["now"].is_displayed() or page["refusal"].is_displayed(), "it is answered", TIMEOUT_S)
        return page["now"].is_displayed()

    until(taken, "the key is taken", TIMEOUT_S)


def test_a_users_key_sees_nothing(page: Page, stack: Stack) -> None:
    page.connect(api_key(stack))
    page.until_says("refusal", "no administrator's")
    page.picture("refused")
    assert not page["now"].is_displayed()
    page["key"].clear()
    page.connect("sk-wrong")
    page.until_says("refusal", "The API key is missing or wrong.")


def test_the_usage_page_shows_what_was_used(browser: Chrome, stack: Stack, admin_key: str, tmp_path: Path) -> None:
    with http_client(stack) as client:
        assert client.post("/v1/chat/completions", json=body("SECRET-Q")).status_code == 200
    page = Page(browser, f"{stack.gateway_url}/usage", tmp_path)
    page.dress("light", NARROW)
    until_taken(page, admin_key)

    def is_drawn() -> bool:
        """Once it is billed; the page looks again when another period is chosen."""
        page.run("document.getElementById('period').dispatchEvent(new Event('change'))")
        page.settle()
        return any(text.startswith("sluice-tiny") for text in page.texts("#model .legend li"))

    until(is_drawn, "the answer is in the picture", TIMEOUT_S, every_s=0.5)
    assert "sluice-tiny" in page.texts("#table td")
    assert any(cell.endswith(" USD") for cell in page.texts("#table td"))
    page.picture("usage")
    assert not page.overflows()
    assert page.complaints() == []
    browser.get("about:blank")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone(page: Page, admin_key: str, scheme: str) -> None:
    page.dress(scheme, NARROW)
    assert not page.overflows()
    until_taken(page, admin_key)
    page.until_says("status", "live")
    page.picture(f"{scheme}-phone")
    assert not page.overflows()
    assert page.is_dark() == (scheme == "dark")


def test_the_data_are_for_administrators_alone(stack: Stack, admin_key: str) -> None:
    told: dict[str, Any] = {}
    with http_client(stack) as client:
        refused = client.get("/api/operations")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")

        def seen() -> bool:
            answer = client.get("/api/operations", headers={"authorization": f"Bearer {admin_key}"})
            told.update(answer.json())
            return answer.status_code == 200 and told["log_state"] == "seen" and len(told["workers"]) == 2

        until(seen, "the log was looked at", TIMEOUT_S, every_s=0.2)
    assert {worker["state"] for worker in told["workers"]} == {"ready"}
    assert {pool["pool"]: pool["level"] for pool in told["pools"]} == {"default": 0, "embeddings": 0}
    lanes = {(lane["pool"], lane["lane"]): lane for lane in told["lanes"]}
    assert (lanes["default", "interactive"]["waiting"], lanes["default", "interactive"]["oldest_ms"]) == (0, 0)
