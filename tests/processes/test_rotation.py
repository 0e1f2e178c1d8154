"""A secret is replaced while what was made with the old one is under way."""

import signal

import pytest

from tests.processes.region import SECRET, Region

NEW = "the secret that comes after, 32 or more"


@pytest.mark.long
def test_requests_in_flight_outlive_a_rotation(region: Region) -> None:
    """Signed by a gateway that knows the old secret alone; read by an admission that was started with the new one."""
    region.beat()
    old = region.tenants_file.with_name("old-secret")
    old.write_bytes(SECRET + b"\n")
    signed = region.request()
    region.send(signed)
    region.flush()
    rotated = {"SLUICE_DEPLOYMENT_SECRET": NEW, "SLUICE_DEPLOYMENT_SECRET_PREVIOUS_FILE": str(old)}
    with region.admission(**rotated) as process:
        assert signed.response_id in region.read_until([signed.response_id]).admitted
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, region.logs()

    late = region.request()
    region.send(late)
    region.flush()
    with region.admission(SLUICE_DEPLOYMENT_SECRET=NEW):
        written = region.read_until([], dead_letters=1)
    assert [letter.reason for letter in written.dead] == ["untrusted"], "once the operator has taken it away"
    assert late.response_id not in written.concluded
