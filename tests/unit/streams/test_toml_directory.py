import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams import toml_directory
from streams.settings import SettingsError
from streams.toml_directory import TenantsUnreadable, TomlTenantDirectory

KEY = "sk-sluice-one"


def _tenant(tenant_id: str, key: str, revoked: bool = False) -> str:
    return f"""
[[tenants]]
tenant_id = "{tenant_id}"
[[tenants.api_keys]]
key_id = "key-{tenant_id}"
sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"
revoked = {str(revoked).lower()}
"""


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_revoked_key_stops_working_within_seconds(tmp_path: Path) -> None:
    path, clock = tmp_path / "tenants.toml", Clock()
    path.write_text(_tenant("acme", KEY))
    directory = TomlTenantDirectory(path, clock)
    found = directory.by_api_key(KEY)
    assert found is not None
    assert found[0].tenant_id == "acme"
    path.write_text(_tenant("acme", KEY, revoked=True))
    clock.now_s = 1.5
    assert directory.by_api_key(KEY) is None


class Counted(dict[str, object]):
    """Knows what was looked up in it, and is never walked through."""

    def __init__(self, of: object) -> None:
        super().__init__(of)  # type: ignore[call-overload]
        self.asked: list[str] = []

    def get(self, key: str, default: object = None) -> object:
        self.asked.append(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("somebody compares keys one after another")

    items = values = keys = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("shown", [KEY, KEY[:-1], KEY[:-1] + "f", "sk-sluice-two", "", "x" * 4_096, "ключ"])
def test_a_key_is_looked_up_once_by_its_digest_whether_it_is_known_nearly_known_or_not(
    tmp_path: Path, shown: str
) -> None:
    """So the time of an answer tells nothing of how near a guess is: a digest of one that is near is as far away."""
    path = tmp_path / "tenants.toml"
    path.write_text(_tenant("acme", KEY) + _tenant("beta", "sk-sluice-revoked", revoked=True))
    directory = TomlTenantDirectory(path)
    counted = directory._by_digest = Counted(directory._by_digest)  # type: ignore[assignment]
    found = directory.by_api_key(shown)
    assert (found is not None) == (shown == KEY)
    assert counted.asked == [hashlib.sha256(shown.encode()).hexdigest()]


def test_a_revocation_is_not_forgotten_because_the_file_could_not_be_read_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, or not yet this user's: nothing of the file changes when that is over."""
    path, clock = tmp_path / "tenants.toml", Clock()
    path.write_text(_tenant("acme", KEY))
    directory = TomlTenantDirectory(path, clock)
    path.write_text(_tenant("acme", KEY, revoked=True))

    def unreadable(_path: Path) -> None:
        raise TenantsUnreadable("tenants_file: too many open files")

    with monkeypatch.context() as just_then:
        just_then.setattr(toml_directory, "read_tenants", unreadable)
        clock.now_s += 2
        assert directory.by_api_key(KEY) is not None
    clock.now_s += 2
    assert directory.by_api_key(KEY) is None


def test_a_broken_file_keeps_the_last_good_content(tmp_path: Path) -> None:
    path, clock = tmp_path / "tenants.toml", Clock()
    path.write_text(_tenant("acme", KEY))
    directory = TomlTenantDirectory(path, clock)
    for broken in ("[[tenants]\n", None):
        path.write_text(broken) if broken is not None else path.unlink()
        clock.now_s += 2
        assert directory.by_api_key(KEY) is not None
    path.write_text(_tenant("beta", KEY))
    clock.now_s += 2
    assert [tenant.tenant_id for tenant in directory.tenants()] == ["beta"]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[[tenants]]\ntenant_id = 'UPPER'", "tenants.0.tenant_id"),
        ("[[tenants]]\ntenant_id = 'a'\n[tenants.limits]\nrequests_per_minute = 0", "requests_per_minute"),
        (_tenant("a", "x") + _tenant("a", "y"), "same tenant_id"),
        (
            _tenant("a", "x") + _tenant("a", "y").partition('[[tenants]]\ntenant_id = "a"\n')[2],
            "a have the same key_id",
        ),
        (
            "[[tenants]]\ntenant_id = 'a'" + "\n[[tenants.producer_keys]]\nkey_id = 'p'\npublic_key = 'x'" * 2,
            "producer keys",
        ),
        (_tenant("a", "x") + _tenant("b", "x"), "same sha256"),
        ("[[tenants]]\ntenant_id = 'a'\nbudget = { amount = -1 }", "tenants.0.budget.amount"),
        ("[[tenants]]\ntenant_id = 'a'\nbudget = { amount = 4_000_001 }", "tenants.0.budget.amount"),
        ("[[tenants]]\ntenant_id = 'a'\nbudget = { amount = 1, currency = 'XAU' }", "tenants.0.budget.currency"),
        ("[[tenants]]\ntenant_id = 'a'\nbudget = { amount = 1, thresholds = [0] }", "tenants.0.budget.thresholds.0"),
        (
            "[[tenants]]\ntenant_id = 'a'\nbudget = { amount = 1 }\n"
            "project_budgets.web = { amount = 1, currency = 'EUR' }",
            "budget in USD and project_budgets.web in EUR",
        ),
        (
            "[[tenants]]\ntenant_id = 'a'\nmodel_limits.tiny = { tokens_per_minute = 0 }",
            "tenants.0.model_limits.tiny.tokens_per_minute",
        ),
        ("[[tenants]]\ntenant_id = 'a'\nalert_webhook = 'https://a..example/x'", "tenants.0.alert_webhook: .*its host"),
        (
            "[[tenants]]\ntenant_id = 'a'\nalert_webhook = 'https://a.example:99999/'",
            "tenants.0.alert_webhook: .*its port",
        ),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=named):
        TomlTenantDirectory(path)
