"""What a model or a person writes is drawn as text and Markdown on the chat page, and never runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.pages import ChatPage, beside
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, Stack

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]
HOSTILE = """<script>window.hacked = 1</script> and <img src=x onerror="window.hacked = 2">

[one](javascript:window.hacked=3) [two](JaVaScRiPt:window.hacked=4) [three](data:text/html,<b>)
[four](vbscript:x) [five]( javascript:window.hacked=6) <a href="javascript:window.hacked=7">six</a>
![seven](javascript:window.hacked=8) ![eight](https://elsewhere.example/pixel.png) <javascript:window.hacked=9>
[nine](https://good.example/?a=1&b=<x> "onmouseover=window.hacked=10") <svg onload=window.hacked=11>

<iframe srcdoc="<script>parent.hacked = 12</script>"></iframe>
<style>body { display: none }</style>

```html" onmouseover="window.hacked=13
<script>window.hacked = 14</script>
```

| <b onclick=window.hacked=15>a</b> | `<i>` |
|---|---|
| <script>window.hacked=16</script> | &lt;script&gt;window.hacked=17&lt;/script&gt; |
"""
MARKDOWN = """# Heading

Some **bold**, *slanted*, ~~struck~~ and `code`, with https://good.example/ in it.

1. one
2. two
   - [x] nested

> quoted

| a | b |
|--:|---|
| 1 | 2 |

```python
print("<b>")
```
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


async def answered(stack: Stack, browser: Chrome, folder: Path, question: str, *tokens: str) -> ChatPage:
    """The page once it shows that answer to that question."""
    page: ChatPage = await beside(ChatPage, browser, stack.url, folder)
    await beside(page.ready, KEY)
    await beside(page.ask, question)
    await stack.pipeline.answer(tokens)
    await beside(page.until_ended)
    return page


async def test_nothing_that_is_written_runs_or_is_fetched(stack: Stack, browser: Chrome, tmp_path: Path) -> None:
    question = '"><img src=x onerror=window.hacked=20> <script>window.hacked=21</script>'
    # As it comes, mostly in the middle of a tag.
    pieces = [HOSTILE[at : at + 7] for at in range(0, len(HOSTILE), 7)]
    page = await answered(stack, browser, tmp_path, question, *pieces)

    def look() -> None:
        page.picture("hostile")
        assert page.run("return window.hacked ?? null") is None
        made = page.run("return [...document.querySelectorAll('#turns *')].map(each => each.tagName.toLowerCase())")
        assert not {"script", "img", "iframe", "svg", "style", "object", "embed", "link", "meta", "base"} & {*made}
        handlers = page.run(
            "return [...document.querySelectorAll('#turns *, #list *')].flatMap(each => [...each.attributes])"
            ".filter(each => each.name.startsWith('on') || each.name === 'srcdoc').length"
        )
        assert handlers == 0
        links = page.run("return [...document.querySelectorAll('#turns a')].map(each => [each.protocol, each.rel])")
        assert links
        assert all(protocol == "https:" and "noopener" in rel for protocol, rel in links)
        shown = page.answer
        assert '<img src=x onerror="window.hacked = 2">' in shown, "it is shown as it was written"
        assert "<script>window.hacked = 14</script>" in shown
        assert page.turns("user") == [question]
        assert page.conversations == [question]
        assert page.complaints() == [], "the policy had nothing to refuse"
        page.forget()

    await beside(look)


async def test_markdown_becomes_elements(stack: Stack, browser: Chrome, tmp_path: Path) -> None:
    page = await answered(stack, browser, tmp_path, "How?", *MARKDOWN.splitlines(keepends=True))

    def look() -> None:
        page.picture("markdown")
        for selector, text in (
            ("h3", "Heading"), ("strong", "bold"), ("em", "slanted"), ("del", "struck"), ("p > code", "code"),
            ("a[href='https://good.example/']", "https://good.example/"), ("ol > li ul > li", "☑ nested"),
            ("blockquote p", "quoted"), ("th", "a"), ("td", "1"), ("pre code", 'print("<b>")'),
            ("figcaption span", "python"),
        ):  # fmt: skip
            assert page.texts(f"#turns .text {selector}")[0].strip() == text
        page.forget()

    await beside(look)


@pytest.mark.parametrize("text", [">" * 30_000 + "deep", "x" * 120_000, "[" * 20_000])
async def test_what_is_too_deep_or_too_long_is_shown_as_it_was_written(
    stack: Stack, browser: Chrome, tmp_path: Path, text: str
) -> None:
    page = await answered(stack, browser, tmp_path, "How?", text)

    def look() -> None:
        assert page.answer == text
        assert page.complaints() == []
        page.forget()

    await beside(look)


async def test_the_policy_refuses_what_is_none_of_the_gateways_files(
    stack: Stack, browser: Chrome, tmp_path: Path
) -> None:
    page: ChatPage = await beside(ChatPage, browser, stack.url, tmp_path)

    def attack() -> None:
        page.run(
            "const script = document.createElement('script');"
            "try { script.textContent = 'window.hacked = 1'; document.head.append(script); } catch {}"
            "try { document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=2>'); } catch {}"
            "const image = new Image(); image.src = 'https://elsewhere.example/x.png'; document.body.append(image);"
        )
        wait_until(lambda: len(page.complaints()) > 0, "the browser says that it refused")
        assert page.run("return window.hacked ?? null") is None

    await beside(attack)
