import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.ids import derive_response_id, mint_response_id, parse_response_id, stable_partition, uuid7


@given(region=st.from_regex(r"[a-z0-9]{1,32}", fullmatch=True), partition=st.integers(0, 99_999))
def test_a_minted_id_names_region_and_partition(region: str, partition: int) -> None:
    parsed = parse_response_id(mint_response_id(region, partition))
    assert (parsed.region, parsed.partition) == (region, partition)


@given(st.text())
def test_nothing_else_is_a_response_id(text: str) -> None:
    with pytest.raises(ValueError):
        parse_response_id(text)


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


@given(tenant=st.text(), source=st.text(), key=st.text(), partitions=st.integers(1, 64))
def test_a_derived_id_is_the_same_for_the_same_work(tenant: str, source: str, key: str, partitions: int) -> None:
    derived = derive_response_id("local", partitions, tenant, source, key)
    assert derived == derive_response_id("local", partitions, tenant, source, key)
    assert parse_response_id(derived).partition < partitions
    assert derived != derive_response_id("local", partitions, tenant + "x", source, key)


def test_partitions_are_agreed_on_across_processes() -> None:
    assert [stable_partition(f"resp-{i}", 8) for i in range(6)] == [0, 2, 7, 2, 6, 4]
