import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.ids import ResponseId, ResponseIds, is_response_id, parse_response_id, stable_partition, uuid7

SECRET, OLDER, OTHER = b"s" * 32, b"o" * 32, b"x" * 32
REGIONS = st.from_regex(r"[a-z0-9]{1,32}", fullmatch=True)
PARTITIONS = st.integers(0, 99_999)
NOW_MS = 1_790_000_000_000


def proves(ids: ResponseIds, text: str, now_ms: int = NOW_MS) -> bool:
    try:
        ids.prove(text, now_ms=now_ms)
    except ValueError:
        return False
    return True


@given(region=REGIONS, partition=PARTITIONS)
def test_a_minted_id_names_region_and_partition_and_is_proved(region: str, partition: int) -> None:
    ids = ResponseIds(region, [SECRET])
    text = ids.mint(partition)
    proved = ids.prove(text, now_ms=NOW_MS)
    assert (proved.region, proved.partition, str(proved)) == (region, partition, text)
    assert proved.minted_at_ms is not None
    assert re.fullmatch(r"resp_[a-z0-9]+-[0-9]{1,5}_[0-9a-f]{32}", text), "the form that the release before reads"


@given(st.text())
def test_nothing_else_is_a_response_id(text: str) -> None:
    with pytest.raises(ValueError):
        parse_response_id(text)


@given(partition=PARTITIONS, digits=st.text("0123456789abcdef", min_size=32, max_size=32))
def test_a_guess_is_not_proved(partition: int, digits: str) -> None:
    assert not proves(ResponseIds("local", [SECRET]), f"resp_local-{partition}_{digits}")


@given(data=st.data(), derived=st.booleans())
def test_an_id_with_any_digit_changed_is_not_proved(data: st.DataObject, derived: bool) -> None:
    ids = ResponseIds("local", [SECRET])
    text = ids.derive(64, "acme", "intake", "job", at_ms=NOW_MS) if derived else ids.mint(7)
    place = data.draw(st.integers(len(text) - 32, len(text) - 1))
    digit = data.draw(st.sampled_from(sorted(set("0123456789abcdef") - {text[place]})))
    assert not proves(ids, text[:place] + digit + text[place + 1 :])
    assert not proves(ids, text[: data.draw(st.integers(0, len(text) - 1))])


@given(partition=PARTITIONS, other=PARTITIONS, region=REGIONS)
def test_an_id_is_good_for_its_own_region_and_partition_alone(partition: int, other: int, region: str) -> None:
    ids = ResponseIds("local", [SECRET])
    unique = ids.prove(ids.mint(partition), now_ms=NOW_MS).unique
    assert proves(ids, str(ResponseId("local", other, unique))) == (other == partition)
    moved = str(ResponseId(region, partition, unique))
    assert proves(ResponseIds(region, [SECRET]), moved) == (region == "local")
    assert not proves(ids, f"resp_local-0{partition}_{unique}"), "one id, one spelling"


def test_the_first_secret_mints_and_each_proves() -> None:
    before, during, after = (ResponseIds("local", s) for s in ([OLDER], [SECRET, OLDER], [SECRET]))
    assert proves(during, before.mint(1))
    assert proves(during, during.mint(1))
    assert proves(after, during.mint(1))
    assert not proves(before, during.mint(1))
    assert not proves(after, before.mint(1))
    assert not proves(ResponseIds("local", [OTHER]), during.mint(1))
    with pytest.raises(ValueError, match="secret"):
        ResponseIds("local", [])


def test_ids_without_a_mac_are_accepted_until_their_time_is_over() -> None:
    without_mac = f"resp_local-3_{uuid7(NOW_MS, bytes(range(10))).hex}"
    upgraded = ResponseIds("local", [SECRET], without_mac_until_ms=NOW_MS + 1_000)
    assert proves(upgraded, without_mac, NOW_MS + 999)
    assert not proves(upgraded, without_mac, NOW_MS + 1_000)
    assert not proves(upgraded, without_mac.replace("local", "other"), NOW_MS)
    assert not proves(ResponseIds("local", [SECRET]), without_mac, NOW_MS)


def test_while_ids_without_a_mac_are_accepted_a_job_has_the_id_that_the_release_before_gives_it() -> None:
    upgraded = ResponseIds("local", [SECRET], without_mac_until_ms=NOW_MS)
    as_before = upgraded.derive(8, "acme", "intake.batch", "job-1", at_ms=NOW_MS - 1)
    assert as_before == "resp_local-3_77b32c6dece4595bbc50adde788e7ad3"
    assert upgraded.derive(8, "acme", "intake.batch", "job-1", at_ms=NOW_MS) != as_before
    assert proves(upgraded, upgraded.derive(8, "acme", "intake.batch", "job-1", at_ms=NOW_MS))


@given(
    earlier=st.integers(0, 2**48 - 2),
    random_bytes=st.binary(min_size=10, max_size=10),
    other=st.binary(min_size=10, max_size=10),
)
def test_uuid7_orders_by_time_and_carries_version_and_variant(earlier: int, random_bytes: bytes, other: bytes) -> None:
    first, second = uuid7(earlier, random_bytes), uuid7(earlier + 1, other)
    assert first.hex < second.hex
    assert (first.version, first.variant) == (7, "specified in RFC 4122")
    assert first.int >> 80 == earlier


def test_ids_of_one_process_differ_although_most_digits_are_time_and_mac() -> None:
    ids = ResponseIds("local", [SECRET])
    minted = [ids.mint(0) for _ in range(20_000)]
    assert len({text[:-10] for text in minted}) == len(minted)


@given(tenant=st.text(), source=st.text(), key=st.text(), partitions=st.integers(1, 64))
def test_a_derived_id_is_the_same_for_the_same_work(tenant: str, source: str, key: str, partitions: int) -> None:
    ids, elsewhere = ResponseIds("local", [SECRET]), ResponseIds("local", [SECRET, OLDER])
    derived = ids.derive(partitions, tenant, source, key, at_ms=1)
    assert derived == elsewhere.derive(partitions, tenant, source, key, at_ms=2)
    proved = ids.prove(derived, now_ms=NOW_MS)
    assert proved.partition < partitions
    assert proved.minted_at_ms is None
    assert is_response_id(derived)
    assert derived != ids.derive(partitions, tenant + "x", source, key, at_ms=1)


@pytest.mark.parametrize("partitions", [1, 2, 7, 8, 12, 64, 100])
def test_derived_ids_fill_few_partitions_and_every_gateway_has_its_share(partitions: int) -> None:
    ids = ResponseIds("local", [SECRET])
    derived = [ids.derive(partitions, "acme", "intake", str(number), at_ms=1) for number in range(2_000)]
    used = Counter(parse_response_id(text).partition for text in derived)
    assert len(used) == min(partitions, 8)
    assert min(used.values()) > 2_000 / len(used) / 2
    if partitions == 64:
        for gateways in (2, 4, 8):
            assert len({partition % gateways for partition in used}) == gateways
            assert len({partition * gateways // 64 for partition in used}) == gateways


def test_partitions_are_agreed_on_across_processes() -> None:
    assert [stable_partition(f"resp-{i}", 8) for i in range(6)] == [0, 2, 7, 2, 6, 4]
