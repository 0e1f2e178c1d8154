"""One secret per purpose, and the one before it."""

import pytest
from pydantic import SecretStr

from streams.ids import ResponseIds
from streams.keyring import Purpose
from streams.settings import Lasting, Rotating, SecretSettings, Settings, SettingsError

ROOT, OLD_ROOT, OWN, OLD_OWN = (SecretStr(letter * 40) for letter in "rRoO")
DERIVED = [Purpose.RESPONSE_IDS, Purpose.DERIVED_IDS, Purpose.BILLING, Purpose.BROWSER_TOKENS, Purpose.ALERT_WEBHOOKS]
ROTATING = [
    Purpose.REQUEST_SIGNING,
    Purpose.RESPONSE_IDS,
    Purpose.BILLING,
    Purpose.BROWSER_TOKENS,
    Purpose.ALERT_WEBHOOKS,
]


def raw(secret: SecretStr) -> bytes:
    return secret.get_secret_value().encode()


def own(purpose: Purpose, **secrets: SecretStr) -> SecretSettings:
    kind = Rotating if purpose in ROTATING else Lasting
    return SecretSettings.model_validate({purpose.value: kind.model_validate(secrets)})


@pytest.mark.parametrize("purpose", Purpose)
def test_the_deployments_secret_serves_until_there_is_one_of_that_purpose(purpose: Purpose) -> None:
    shared = Settings(deployment_secret=ROOT)
    assert (shared.keyring(purpose).current == raw(ROOT)) is (purpose not in DERIVED)
    settings = Settings(deployment_secret=ROOT, secrets=own(purpose, value=OWN))
    assert settings.keyring(purpose).accepted == (raw(OWN),)
    assert all(settings.keyring(other) == shared.keyring(other) for other in Purpose if other is not purpose)


def test_what_is_derived_says_nothing_of_another_purpose_or_of_the_root() -> None:
    settings = Settings(deployment_secret=ROOT)
    currents = [settings.keyring(purpose).current for purpose in DERIVED]
    assert len({*currents, raw(ROOT)}) == len(DERIVED) + 1


@pytest.mark.parametrize("purpose", ROTATING)
def test_what_was_made_before_a_rotation_is_still_accepted(purpose: Purpose) -> None:
    before = Settings(deployment_secret=OLD_ROOT).keyring(purpose)
    after = Settings(deployment_secret=ROOT, deployment_secret_previous=OLD_ROOT).keyring(purpose)
    assert before.current in after.accepted
    assert after.current != before.current
    assert before.current not in Settings(deployment_secret=ROOT).keyring(purpose).accepted

    settings = Settings(deployment_secret=ROOT, secrets=own(purpose, value=OWN, previous=OLD_OWN))
    assert settings.keyring(purpose).accepted == (raw(OWN), raw(OLD_OWN))


def test_billing_lets_in_a_gateway_of_the_release_before() -> None:
    assert raw(ROOT) in Settings(deployment_secret=ROOT).keyring(Purpose.BILLING).accepted
    assert raw(ROOT) != Settings(deployment_secret=ROOT).keyring(Purpose.BILLING).current


def test_no_secret_at_all_is_refused_and_none_is_shown() -> None:
    with pytest.raises(SettingsError, match="deployment_secret"):
        Settings().keyring(Purpose.RESPONSE_IDS)
    settings = Settings(secrets=own(Purpose.RESPONSE_IDS, value=OWN))
    assert OWN.get_secret_value() not in repr(settings.keyring(Purpose.RESPONSE_IDS))


def test_a_job_that_is_delivered_again_after_a_rotation_keeps_its_id() -> None:
    def ids(**secrets: SecretStr) -> ResponseIds:
        return Settings(deployment_secret=ROOT, secrets=own(Purpose.RESPONSE_IDS, **secrets)).response_ids

    before, during, after = ids(value=OLD_OWN), ids(value=OWN, previous=OLD_OWN), ids(value=OWN)
    job, *others = (each.derive(64, "acme", "intake.batch", "line-1", at_ms=1) for each in (before, during, after))
    assert others == [job, job], "else it would be done, and billed, again"
    assert after.prove(job, now_ms=1)
    minted = before.mint(3)
    assert during.prove(minted, now_ms=1)
    with pytest.raises(ValueError, match="nobody was given"):
        after.prove(minted, now_ms=1)
