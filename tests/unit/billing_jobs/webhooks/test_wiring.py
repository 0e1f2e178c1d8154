"""Who is to be told, and with what secret, is known before the first alert, or is asked again."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs

from billing_jobs.__main__ import check_settings
from billing_jobs.webhooks.wiring import tenants_of
from streams.settings import AlertSettings, Rotating, SecretSettings, Settings, SettingsError
from streams.toml_directory import TenantsUnreadable

SECRET = Rotating(value=SecretStr("s" * 32))
OPS = AlertSettings(webhooks=["http://10.0.0.1:9/ops"])


def test_whoever_asks_to_be_told_has_a_secret_to_check_it_with_or_billing_does_not_begin() -> None:
    billing_alone = SecretSettings(billing=SECRET)
    check_settings(Settings(secrets=billing_alone))
    with pytest.raises(SettingsError, match=r"^alerts\.webhooks: "):
        check_settings(Settings(secrets=billing_alone, alerts=OPS))
    check_settings(Settings(secrets=SecretSettings(billing=SECRET, alert_webhooks=SECRET), alerts=OPS))


@pytest.mark.parametrize("url", ["", "https://host:99999/", "https://[::1/", "https://a..example/", "ftp://a.example/"])
def test_an_address_of_the_operator_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"webhooks\.0"):
        AlertSettings(webhooks=[url])


def test_without_a_file_of_tenants_none_is_told_and_one_that_cannot_be_read_is_read_again(tmp_path: Path) -> None:
    assert tenants_of(Settings(tenants_file=tmp_path / "tenants.toml")) is None
    with pytest.raises(TenantsUnreadable):
        tenants_of(Settings(tenants_file=tmp_path))


def test_a_tenants_address_that_is_not_allowed_is_said_at_the_beginning(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('[[tenants]]\ntenant_id = "acme"\nalert_webhook = "http://a.example/secret"\n')
    with capture_logs() as logs:
        assert tenants_of(Settings(tenants_file=file)) is not None
    assert [(each["event"], each["tenant_id"], each["why"]) for each in logs] == [
        ("tenant_webhook_not_allowed", "acme", "without TLS")
    ]
    with capture_logs() as logs:
        tenants_of(Settings(tenants_file=file, alerts=AlertSettings(tenant_webhooks_anywhere=True)))
    assert logs == []
