"""The pages' files: whole, unchanged where they are others', served so that a browser trusts and keeps them."""

import io
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.install import page_library
from schemas.endings import ENDINGS, EndingCode
from streams.gateway.closing import CloseReason
from streams.gateway.http.described import described, in_line
from streams.gateway.http.page_routes import FOLDER, assets
from tests.unit.streams.gateway.gateway_stack import Stack

PAGES = ("/", "/operations", "/usage", "/docs")
OWN = [path for path in sorted(FOLDER.rglob("*.*")) if path.is_file() and "vendor" not in path.parts]
MAX_BYTES = 200_000
"""Of all that a page loads: it is to be there at once, on a telephone too."""


def browse(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, trust_env=False)


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_served_under_a_strict_policy_and_asked_for_anew(stack: Stack, path: str) -> None:
    async with browse(stack) as http:
        page = await http.get(path)
        assert page.status_code == 200
        policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-cache"
        again = await http.get(path, headers={"if-none-match": f'"other", W/{page.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert (await http.get(path, headers={"if-none-match": '"other"'})).content == page.content
        elements = read(page.text)
        assert "style" not in elements.tags
        assert not [name for name, _ in elements.attributes if name == "style" or name.startswith("on")]
        sources = [value or "" for name, value in elements.attributes if name in ("src", "href")]
        assert elements.tags.count("script") == sum(value.endswith(".js") for value in sources), (
            "none stands in the page"
        )
        assert all(re.match(r"/|#|https?://", value) for value in sources)
        named = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.text)
        assert named
        for name in named:
            assert (await http.get(name)).status_code == 200


async def test_assets_have_their_kinds_and_nothing_else_is_served(stack: Stack) -> None:
    async with browse(stack) as http:
        for name, kind in (("chat.js", "text/javascript"), ("page.css", "text/css"), ("icon.svg", "image/svg+xml")):
            found = await http.get(f"/assets/{name}")
            assert found.headers["content-type"].startswith(kind)
            assert found.headers["etag"]
        for name in ("", "nothing.js", "../chat.html", "%2e%2e/chat.html", "vendor", "/etc/passwd"):
            assert (await http.get(f"/assets/{name}")).status_code == 404


def test_modules_import_what_is_there() -> None:
    served = assets()
    for name, asset in served.items():
        if name.endswith(".js") and not name.startswith("vendor/"):
            for imported in re.findall(r'from "\./([^"]+)"', asset.content.decode()):
                assert imported in served, f"{name} imports {imported}"
    assert sum(len(asset.content) for asset in served.values()) < MAX_BYTES


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_files_are_short_and_make_no_markup_of_text(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)


def test_what_is_others_is_as_they_published_it() -> None:
    for name, (own_name, _) in page_library.FILES.items():
        page_library.checked(name, (page_library.FOLDER / own_name).read_bytes())
    assert {path.name for path in page_library.FOLDER.iterdir()} == {name for name, _ in page_library.FILES.values()}
    assert f"v{page_library.VERSION} " in (page_library.FOLDER / "marked.esm.js").read_text()[:200]


def test_another_file_in_the_package_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as package:
        for name in page_library.FILES:
            member = tarfile.TarInfo(f"package/{name}")
            member.size = 4
            package.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(page_library.NotThatFile, match="SHA-256"):
        page_library.unpacked(archive)


MET_BY_NO_PAGE = {
    "batch_not_cancellable", "batch_not_found", "file_in_use", "file_not_found", "file_storage_full", "file_too_large",
    "item_not_found", "job_not_found", "organization_not_found", "too_many_batches", "unsupported_media_type",
}  # fmt: skip


def test_every_way_to_end_is_explained_to_a_person() -> None:
    source = (FOLDER / "assets" / "endings.js").read_text()
    told = set(re.findall(r"^  (\w+): \[\s*\"", source, re.MULTILINE))
    expected = {code.value for code in EndingCode if code is not EndingCode.COMPLETED}
    assert expected | {reason.value for reason in CloseReason} <= told
    raised = {
        code
        for path in (FOLDER.parents[1]).rglob("*.py")
        for code in re.findall(r'ApiError\(\s*\d+, "(\w+)"', path.read_text())
    }
    assert raised - MET_BY_NO_PAGE <= told
    own = {code for path in OWN for code in re.findall(r'code: "(\w+)", message', path.read_text())}
    assert {"unreachable", "not_sent"} <= own <= told
    billed = set(re.findall(r'"(\w+)"', source.split("BILLED = new Set([")[1].split("]")[0]))
    assert billed == {code.value for code, rule in ENDINGS.items() if rule.billed}


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Elements:
    elements = Elements()
    elements.feed(html)
    elements.close()
    return elements


def test_what_describes_a_route_is_rendered() -> None:
    assert in_line("with `stream: true`, **now**") == "with <code>stream: true</code>, <strong>now</strong>"
    assert in_line("a [page](/docs#x) and `[no](/link)`") == (
        'a <a href="/docs#x">page</a> and <code>[no](/link)</code>'
    )
    assert described("One.\n\n- `a`\n- b\n\nTwo\nlines.") == (
        "<p>One.</p><ul><li><code>a</code></li><li>b</li></ul><p>Two\nlines.</p>"
    )
    assert in_line("[x](javascript:alert(1)) <b>") == "[x](javascript:alert(1)) &lt;b&gt;"


_PIECES: Any = st.sampled_from(
    ["`", "**", "[", "](", ")", "/x", "https://a", "<img src=x>", '"', "'", "\n\n", "- ", "a", "&lt;"]
)


@given(st.lists(_PIECES, max_size=30).map("".join))
def test_whatever_describes_it_makes_no_other_element(text: str) -> None:
    elements = read(described(text))
    assert set(elements.tags) <= {"p", "ul", "li", "code", "strong", "a"}
    assert all(name == "href" and re.match(r"https?://|/|#", str(value)) for name, value in elements.attributes)


async def test_the_reference_shows_no_markdown(stack: Stack) -> None:
    async with browse(stack) as http:
        shown = read((await http.get("/docs")).text.split("<h2>Schemas")[0])
    assert "/v1/chat/completions" in shown.text
    assert "`" not in shown.text
    assert "**" not in shown.text
