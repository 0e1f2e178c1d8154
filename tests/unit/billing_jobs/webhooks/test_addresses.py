"""A tenant's address leads out of here or nowhere, whatever it is written like."""

import asyncio

import httpx
import pytest

from billing_jobs.webhooks.addresses import Forbidden, Target, check_url, leads_out, resolve

INSIDE = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:a00:1::1",
    "2001:db8::1", "64:ff9b:1::7f00:1", "64:ff9b:1:7f:0:100::", "fec0::1", "::127.0.0.1", "::ffff:0:127.0.0.1",
    "5f00::1", "3fff::1", "192.0.0.8", "192.0.0.9", "168.63.129.16", "100:0:0:1::1",
]  # fmt: skip
OUTSIDE = ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"]
MALFORMED = [
    "https://hooks..example.com/x", f"https://{'a' * 64}.example/", "https://.example.com/", "https://xn--/",
    "https://host:99999/", "https://host:0/", "https://[::1/", "https://a%20b/", "https://a.example/\x7f",
]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_of_this_machine_or_a_network_of_ours_is_not_told(address: str) -> None:
    assert not leads_out(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_what_is_of_the_internet_may_be_told(address: str) -> None:
    assert leads_out(address)


@pytest.mark.parametrize("url", ["ftp://a.example/", "https:///path", "https://user:pass@a.example/", *MALFORMED])
def test_what_is_no_address_is_refused_whoever_gave_it(url: str) -> None:
    with pytest.raises(Forbidden):
        check_url(url, is_open=True)


def test_without_tls_a_tenant_is_told_nothing_unless_that_is_allowed() -> None:
    with pytest.raises(Forbidden, match="without TLS"):
        check_url("http://a.example/hook", is_open=False)
    assert check_url("http://a.example/hook", is_open=True).host == "a.example"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_what_a_name_leads_to_counts_and_not_what_it_is_called(host: str) -> None:
    url = httpx.URL(f"https://{host}/hook")
    with pytest.raises(Forbidden):
        asyncio.run(resolve(url, is_open=False))
    assert asyncio.run(resolve(url, is_open=True)) in ("127.0.0.1", "::1")


def test_logs_name_a_target_without_what_may_be_secret_in_it() -> None:
    assert Target("acme", "https://a.example/services/T000/secret?key=1").name == "acme@a.example"
    assert Target("", "https://a.example/x").name == "operator@a.example"


@pytest.mark.parametrize("url", ["", *MALFORMED])
def test_logs_name_a_target_whose_address_is_none(url: str) -> None:
    assert Target("acme", url).name == "acme@?"


def test_the_name_that_is_looked_up_is_the_one_that_the_message_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(0, 0, 0, "", ("1.1.1.1", port))]

    async def resolved() -> str:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
        return await resolve(url, is_open=False)

    url = check_url("https://fa\u00df.example/hook", is_open=False)
    assert asyncio.run(resolved()) == "1.1.1.1"
    assert [host.encode() for host in asked] == [url.netloc]
