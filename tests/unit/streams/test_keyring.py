"""One secret per purpose, and the one before it."""

import pytest
from pydantic import SecretStr

from streams.keyring import Purpose
from streams.settings import Lasting, Rotating, SecretSettings, Settings, SettingsError

ROOT, OLD_ROOT, OWN, OLD_OWN = (SecretStr(letter * 40) for letter in "rRoO")
DERIVED = [Purpose.RESPONSE_IDS, Purpose.BILLING]
ROTATING = [purpose for purpose in Purpose if purpose is not Purpose.END_USER_PSEUDONYMS]


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
    assert len({*currents, raw(ROOT)}) == 3


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
