"""TLS, SASL and secrets in the settings: wrong combinations are told at start, field by field; nothing is printed."""

from pathlib import Path

import pytest

from streams.settings import CONFIG_VARIABLE, SettingsError, load_settings

PASSWORD = "hunter2-hunter2-hunter2-hunter2-hunter2"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sluice.toml"
    path.write_text('region = "here"')
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    for name in ("ca.pem", "client.crt", "client.key"):
        (tmp_path / name).write_text("a certificate")
    return path


def wrong_fields(config: Path, toml: str) -> dict[str, str]:
    """What is said of each, by its name."""
    config.write_text(toml.replace("DIR", str(config.parent)))
    with pytest.raises(SettingsError) as caught:
        load_settings()
    return dict(line.split(": ", 1) for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("kafka", "named"),
    [
        ('security_protocol = "SASL_SSL"', ["sasl_mechanism", "sasl_username", "sasl_password"]),
        ('security_protocol = "TLS"', ["security_protocol"]),
        ('sasl_username = "gateway"\nsasl_password = "secret"', ["sasl_username", "sasl_password"]),
        ('security_protocol = "SSL"\nsasl_mechanism = "PLAIN"', ["sasl_mechanism"]),
        ('ssl_ca_file = "DIR/ca.pem"', ["ssl_ca_file"]),
        ('security_protocol = "SSL"\nssl_ca_file = "DIR/nowhere.pem"', ["ssl_ca_file"]),
        ('security_protocol = "SSL"\nssl_certificate_file = "DIR/client.crt"', ["ssl_key_file"]),
        ('security_protocol = "SSL"\nssl_key_file = "DIR/client.key"', ["ssl_key_file"]),
        ('security_protocol = "SSL"\nssl_key_password = "secret"', ["ssl_key_password"]),
        (
            'security_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "PLAIN"\nsasl_username = "gateway"\n'
            'sasl_password_file = "DIR/nowhere"',
            ["sasl_password"],
        ),
        ('[kafka.extra]\n"sasl.password" = "secret"\n"ssl.ca.location" = "/ca"', ["extra"]),
    ],
)
def test_a_wrong_combination_for_kafka_is_told_field_by_field(config: Path, kafka: str, named: list[str]) -> None:
    assert list(wrong_fields(config, f"[kafka]\n{kafka}")) == [f"kafka.{name}" for name in named]


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ('[redis]\nca_file = "DIR/ca.pem"', "redis.ca_file"),
        ('[redis]\nurl = "rediss://h/0"\ncertificate_file = "DIR/client.crt"', "redis.key_file"),
        ('[redis]\nhistory_password = "secret"', "redis.history_password"),
        ('[billing]\nclickhouse_password = "secret"', "billing.clickhouse_password"),
        ('[billing]\nclickhouse_url = "http://h"\nclickhouse_ca_file = "DIR/ca.pem"', "billing.clickhouse_ca_file"),
        ('[secrets.response_ids]\nvalue = "short"', "secrets.response_ids.value"),
        (f'[secrets.response_ids]\nprevious = "{PASSWORD}"', "secrets.response_ids.previous"),
        (f'deployment_secret_previous = "{PASSWORD}"', "deployment_secret_previous"),
    ],
)
def test_a_wrong_combination_elsewhere_is_told_by_its_field(config: Path, toml: str, named: str) -> None:
    assert list(wrong_fields(config, toml)) == [named]


def test_a_secret_may_stand_in_a_file_as_kubernetes_mounts_it(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = config.parent / "secret"
    mounted.write_text(f"{PASSWORD}\n")
    monkeypatch.setenv("SLUICE_SECRETS__REQUEST_SIGNING__VALUE_FILE", str(mounted))
    monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET_FILE", str(mounted))
    monkeypatch.setenv("SLUICE_REDIS__PASSWORD_FILE", str(mounted))
    monkeypatch.setenv("SLUICE_KAFKA__SSL_KEY_PASSWORD_FILE", "")
    settings = load_settings()
    assert settings.secrets.request_signing.value.get_secret_value() == PASSWORD
    assert settings.deployment_secret.get_secret_value() == PASSWORD
    assert settings.redis.password.get_secret_value() == PASSWORD
    assert settings.kafka.ssl_key_password_file is None


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"x" * 70_000])
def test_a_file_that_holds_no_secret_is_refused(config: Path, content: bytes) -> None:
    (config.parent / "secret").write_bytes(content)
    assert list(wrong_fields(config, 'deployment_secret_file = "DIR/secret"')) == ["deployment_secret"]


def test_a_secret_that_is_given_twice_is_refused(config: Path) -> None:
    (config.parent / "secret").write_text(PASSWORD)
    toml = f'deployment_secret = "another-{PASSWORD}"\ndeployment_secret_file = "DIR/secret"'
    assert list(wrong_fields(config, toml)) == ["deployment_secret"]


def test_no_secret_shows_in_a_representation_a_dump_or_a_refusal(config: Path) -> None:
    toml = "\n".join(
        [
            f'deployment_secret = "{PASSWORD}"',
            "[kafka]",
            'security_protocol = "SASL_PLAINTEXT"',
            'sasl_mechanism = "PLAIN"',
            'sasl_username = "gateway"',
            f'sasl_password = "{PASSWORD}"',
            "[redis]",
            f'url = "redis://:{PASSWORD}@127.0.0.1:1/0"',
            f'password = "{PASSWORD}"',
            "[billing]",
            f'clickhouse_url = "http://billing:{PASSWORD}@clickhouse:8123/sluice"',
            "[secrets.billing]",
            f'value = "{PASSWORD}"',
            f'previous = "{PASSWORD}"',
        ]
    )
    config.write_text(toml)
    settings = load_settings()
    for shown in (repr(settings), str(settings)):
        assert PASSWORD not in shown
    dump = settings.model_dump(exclude={"redis": {"url"}, "billing": {"clickhouse_url"}})
    assert PASSWORD not in repr(dump)
    config.write_text(f"{toml}\n[gateway]\nport = -1")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert PASSWORD not in str(caught.value)
