"""The bill of materials names all that is pinned, and all that is installed, and is the same each time."""

import json
import re
from importlib.metadata import distributions
from typing import Any

import pytest

from deploy.install.bootstrap import REQUIREMENTS, read_stamp
from deploy.install.kafka_jars import locked
from deploy.install.sbom import ITSELF, SETS, bill_of, pins_of

PIN = """aiohttp==3.14.5 ; sys_platform == 'linux' \\
    --hash=sha256:{b} \\
    --hash=sha256:{a}
    # via
    #   aiohttp-cors
    #   sluice
uv==0.13.9 \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


@pytest.fixture(params=SETS)
def bill(request: pytest.FixtureRequest) -> dict[str, Any]:
    return bill_of(request.param)


def test_a_pin_is_read_with_its_hashes_and_who_asks_for_it() -> None:
    first, second = pins_of(PIN)
    assert (first.name, first.version, first.marker) == ("aiohttp", "3.14.5", "sys_platform == 'linux'")
    assert first.sha256 == ("a" * 64, "b" * 64)
    assert first.via == ("aiohttp-cors", "sluice")
    assert (second.purl, second.via) == ("pkg:pypi/uv@0.13.9", ())


@pytest.mark.parametrize("text", ["uv==1.0\n", "uv>=1 \\\n    --hash=sha256:" + "a" * 64, "uv @ file:///x \\\n"])
def test_what_is_not_pinned_with_hashes_is_no_part_of_it(text: str) -> None:
    with pytest.raises(ValueError, match="not pinned"):
        list(pins_of(text))


def test_every_line_that_pins_something_is_in_it(bill: dict[str, Any]) -> None:
    [about] = bill["metadata"]["properties"]
    text = (REQUIREMENTS / f"{about['value']}.txt").read_text()
    pinned = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", text, re.MULTILINE)
    told = [
        (part["name"], part["version"]) for part in bill["components"] if part.get("purl", "").startswith("pkg:pypi")
    ]
    assert sorted(pinned) == sorted(told)
    assert text.count("--hash=sha256:") == sum(
        len(part["hashes"]) for part in bill["components"] if part.get("purl", "").startswith("pkg:pypi")
    )


def test_whoever_needs_a_part_and_what_it_needs_are_parts(bill: dict[str, Any]) -> None:
    refs = [part["bom-ref"] for part in bill["components"]]
    assert len(refs) == len(set(refs))
    assert {each["ref"] for each in bill["dependencies"]} == {ITSELF, *refs}
    reached = {ITSELF}
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    left = [ITSELF]
    while left:
        news = {*needs[left.pop()]} - reached
        reached |= news
        left += news
    assert reached == {ITSELF, *refs}, "nothing is there for nobody"


def test_it_holds_the_brokers_jars_and_the_pages_library(bill: dict[str, Any]) -> None:
    names = {part["name"] for part in bill["components"]}
    assert "marked" in names
    with_kafka = bill["metadata"]["properties"][0]["value"] not in ("server", "tracing")
    assert {*locked()} <= names if with_kafka else not {*locked()} & names


def test_it_is_the_same_each_time_and_another_where_a_pin_is() -> None:
    one, again, other = bill_of("light"), bill_of("light"), bill_of("server")
    assert json.dumps(one) == json.dumps(again)
    assert one["serialNumber"] != other["serialNumber"]


def test_all_that_is_installed_here_is_in_it() -> None:
    """But for what tests need, and for what installs."""
    profile = next((name for name in ("gpu", "cpu", "light") if name in read_stamp()), None)
    if profile is None:
        pytest.skip("not installed by the bootstrap")
    told = {(normal(part["name"]), part.get("version")) for part in bill_of(profile)["components"]}
    beside = {
        normal(pin.name)
        for name in ("dev", "build", "uv")
        for pin in pins_of((REQUIREMENTS / f"{name}.txt").read_text())
    }
    installed = {(normal(each.metadata["Name"]), each.version) for each in distributions()}
    assert {each for each in installed if each[0] not in beside | {"sluice", "pip", "setuptools"}} <= told
