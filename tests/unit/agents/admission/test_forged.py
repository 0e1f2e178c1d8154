"""What comes from outside under a name that is not its own, or a second time: nothing of it is executed, and nothing of
it touches what is genuine.
"""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from schemas.batch import CUSTOM_ID_HEADER, EXPIRES_HEADER, KEY_ID_HEADER, SIGNATURE_HEADER, TENANT_HEADER
from schemas.endings import EndingCode
from schemas.request import AdmittedRequest
from streams.directory import ProducerKey, Tenant
from streams.log.port import LogRecord
from streams.signing import GATEWAY_MAC_HEADER, sign_job, sign_request
from tests.unit.agents.admission.world import NOW, PRODUCER_KEY, SECRET, World

LANE = "local.inference.default.batch"
BETAS_KEY = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
"""`acme` has the other one. Both call theirs `p1`."""


def with_beta(world: World) -> World:
    public = base64.b64encode(BETAS_KEY.public_key().public_bytes_raw()).decode()
    beta = Tenant(tenant_id="beta", producer_keys=[ProducerKey(key_id="p1", public_key=public)])
    world.directory.all["beta"] = beta
    return world


@pytest.fixture
def two(world: World) -> World:
    return with_beta(world)


def executed(world: World) -> list[AdmittedRequest]:
    return [work for _, work in world.log.of(AdmittedRequest, LANE)]


def with_header(record: LogRecord, name: str, value: bytes) -> LogRecord:
    """In the place of its own."""
    return replace(record, headers=tuple({**dict(record.headers), name: value}.items()))


def and_behind(record: LogRecord, name: str, value: bytes) -> LogRecord:
    """The same header once more."""
    return replace(record, headers=(*record.headers, (name, value)))


async def test_a_signed_job_that_is_written_again_when_it_has_expired_is_not_executed(world: World) -> None:
    genuine = world.job()
    await world.submit(genuine)
    [work] = executed(world)
    again = replace(genuine, offset=77, timestamp_ms=NOW + 600_001)
    await world.submit(again)
    assert [each.response_id for each in executed(world)] == [work.response_id]
    [refused] = world.log.endings
    assert refused.code == EndingCode.JOB_EXPIRED
    assert refused.response_id != work.response_id


async def test_and_within_its_time_it_is_the_same_job_however_often_it_comes(world: World) -> None:
    genuine = world.job()
    for offset in (9, 77, 78):
        await world.submit(replace(genuine, offset=offset, timestamp_ms=NOW + offset))
    assert len({work.response_id for work in executed(world)}) == 1
    assert not world.log.endings


async def test_a_job_of_another_region_or_topic_is_not_executed_here(world: World) -> None:
    """Who can read what a producer wrote elsewhere can write it here."""
    genuine = world.job()
    elsewhere = sign_job(
        PRODUCER_KEY, topic="mars.intake.batch", tenant_id="acme", key_id="p1", custom_id="line-1",
        expires_ms=NOW + 600_000, value=genuine.value or b"",
    )  # fmt: skip
    await world.submit(replace(genuine, headers=tuple(elsewhere)))
    assert not executed(world)


FORGED: dict[str, Callable[[World], LogRecord]] = {
    "another key": lambda world: world.job(key=BETAS_KEY),
    "another tenant's name": lambda world: world.job(tenant_id="beta"),
    "another tenant's name behind the signature": lambda world: with_header(world.job(), TENANT_HEADER, b"beta"),
    "two tenants": lambda world: and_behind(world.job(), TENANT_HEADER, b"beta"),
    "two signatures": lambda world: and_behind(world.job(), SIGNATURE_HEADER, b"A" * 88),
    "another job's name": lambda world: with_header(world.job(), CUSTOM_ID_HEADER, b"line-2"),
    "more time": lambda world: with_header(world.job(), EXPIRES_HEADER, str(NOW + 700_000).encode()),
    "figures that are none": lambda world: with_header(world.job(), EXPIRES_HEADER, "\u0666".encode()),
    "another key's name": lambda world: with_header(world.job(), KEY_ID_HEADER, b"p2"),
    "another value": lambda world: replace(world.job(), value=(world.job().value or b"") + b" "),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_a_job_that_claims_what_is_not_signed_is_not_executed(
    two: World, forge: Callable[[World], LogRecord]
) -> None:
    await two.submit(forge(two))
    assert not executed(two)
    await two.submit(two.job(offset=500))
    await two.submit(two.job(tenant_id="beta", key=BETAS_KEY, offset=501))
    assert [work.scope.tenant_id for work in executed(two)] == ["acme", "beta"], "the genuine ones are"


async def test_a_producer_cannot_write_what_only_a_gateway_may(world: World) -> None:
    """A line of a batch names tenant, limits and place of its answer itself."""
    value = world.request(service_tier="batch").encode()
    for secret in (b"x" * 32, b""):
        headers = tuple(sign_request(secret, world.topics.intake_batch.name, value))
        await world.pipeline.handle_job(LogRecord(world.topics.intake_batch.name, 2, 5, None, value, headers, NOW))
    for_another_topic = tuple(sign_request(SECRET, world.topics.requests.name, value))
    await world.pipeline.handle_job(
        LogRecord(world.topics.intake_batch.name, 2, 6, None, value, for_another_topic, NOW)
    )
    with_both = (*world.job().headers, (GATEWAY_MAC_HEADER, b"x" * 32))
    await world.pipeline.handle_job(LogRecord(world.topics.intake_batch.name, 2, 7, None, value, with_both, NOW))
    assert [letter.reason for letter in world.log.dead] == ["untrusted"] * 4
    assert world.log.kinds == ["dead-letters"] * 4, "nothing else is written of it"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([TENANT_HEADER, KEY_ID_HEADER, CUSTOM_ID_HEADER, EXPIRES_HEADER, SIGNATURE_HEADER]),
            st.one_of(st.binary(max_size=300), st.sampled_from([b"acme", b"beta", b"p1", b"line-1"])),
        ),
        max_size=4,
    )
)
def test_whatever_headers_say_no_job_runs_without_a_signature_over_them(headers: list[tuple[str, bytes]]) -> None:
    world = with_beta(World())
    forged = replace(world.job(key=BETAS_KEY), headers=(*world.job(key=BETAS_KEY).headers, *headers))
    asyncio.run(world.submit(forged))
    assert not executed(world)
