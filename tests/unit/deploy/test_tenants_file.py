import base64
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from deploy.local.data_folder import DataFolder
from deploy.local.first_run import provision_keys
from deploy.tenants_file import (
    TenantsFileError,
    create_api_key,
    create_producer_key,
    create_tenant,
    render,
    revoke_key,
    write_tenants,
)
from schemas.hazards import Hazard
from streams.directory import Budget, KeyScope, Limits, Role, ScopedLimits, Tenant
from streams.safety_policy import DenyPattern, DenyPhrase, SafetyPolicy
from streams.signing import sign_job, verify_job
from streams.toml_directory import TomlTenantDirectory, read_tenants

CHANGES = 20
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
budgets = st.builds(
    Budget, amount=st.decimals(0, 4_000_000, places=9, allow_nan=False), hard=st.booleans(),
    thresholds=st.lists(st.integers(1, 100), max_size=3),
)  # fmt: skip
hazards = st.none() | st.sampled_from(Hazard)
tenants = st.builds(
    Tenant,
    tenant_id=st.from_regex(r"[a-z0-9][a-z0-9-]{0,10}", fullmatch=True),
    tier=st.sampled_from(["free", "paid", "premium"]),
    limits=st.builds(Limits, requests_per_minute=st.integers(1, 10**9)),
    policy=st.builds(
        SafetyPolicy,
        prompt_deny=st.lists(any_text | st.builds(DenyPhrase, phrase=any_text, category=hazards), max_size=4),
        prompt_deny_patterns=st.lists(
            st.builds(DenyPattern, pattern=st.sampled_from([r"\d{4}", "a'\"\\\\b", "(?i)ü+"]), category=hazards),
            max_size=3,
        ),
        see_through=st.booleans(),
        output_deny=st.lists(any_text, max_size=4),
    ),
    models=st.lists(any_text, max_size=3),
    budget=st.none() | budgets,
    project_budgets=st.dictionaries(any_text.filter(bool), budgets, max_size=2),
    model_limits=st.dictionaries(
        st.sampled_from(["tiny", "org/large 2"]), st.builds(ScopedLimits, tokens_per_minute=st.none() | st.just(9))
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tenants, min_size=1, max_size=4, unique_by=lambda tenant: tenant.tenant_id))
def test_what_is_written_reads_back_equal(tmp_path: Path, written: list[Tenant]) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(render(written), newline="")
    assert read_tenants(file) == written


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    write_tenants(path, [Tenant(tenant_id="one"), Tenant(tenant_id="two")])
    return path


def test_a_created_key_opens_the_door_until_it_is_revoked(file: Path) -> None:
    api_key = create_api_key(file, "two", "laptop")
    found = TomlTenantDirectory(file).by_api_key(api_key)
    assert found is not None
    assert (found[0].tenant_id, found[1].key_id) == ("two", "laptop")

    revoke_key(file, "two", "laptop")
    assert TomlTenantDirectory(file).by_api_key(api_key) is None


def test_a_key_opens_no_door_once_it_is_over(file: Path, tmp_path: Path) -> None:
    over = datetime(2027, 3, 1, tzinfo=UTC)
    api_key = create_api_key(file, "two", "guest", expires_at=over)
    create_producer_key(file, "two", "loader", tmp_path / "loader.pem", expires_at=over)
    over_ms = int(over.timestamp() * 1_000)
    for at_ms, opens in ((over_ms - 1, True), (over_ms, False)):
        directory = TomlTenantDirectory(file, clock_ms=partial(int, at_ms))
        assert (directory.by_api_key(api_key) is not None) == opens
        assert (directory.producer_key("two", "loader") is not None) == opens


def test_a_key_has_the_scopes_that_it_was_created_with_and_no_more_than_its_role(file: Path) -> None:
    api_key = create_api_key(file, "two", "page", role=Role.USER, scopes=[KeyScope.RESPONSES])
    figures = create_api_key(file, "two", "figures", role=Role.ANALYST)
    directory = TomlTenantDirectory(file)
    granted = [found[1].granted for key in (api_key, figures) if (found := directory.by_api_key(key)) is not None]
    assert granted == [{KeyScope.RESPONSES}, {KeyScope.USAGE}]
    with pytest.raises(ValidationError, match="responses is not of the role 'analyst'"):
        create_api_key(file, "two", "more", role=Role.ANALYST, scopes=[KeyScope.RESPONSES])


def test_the_file_holds_digests_and_is_private(file: Path) -> None:
    api_key = create_api_key(file, "one", "laptop")
    assert api_key not in file.read_text()
    assert hashlib.sha256(api_key.encode()).hexdigest() in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_producer_key_signs_what_its_public_half_verifies(file: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private_file = tmp_path / "keys" / "one.pem"
    create_producer_key(file, "one", "loader", private_file)
    assert stat.S_IMODE(private_file.stat().st_mode) == 0o600
    private_key = load_pem_private_key(private_file.read_bytes(), password=None)
    assert isinstance(private_key, Ed25519PrivateKey)
    entry = TomlTenantDirectory(file).producer_key("one", "loader")
    assert entry is not None
    assert len(base64.b64decode(entry.public_key)) == 32
    job = {"topic": "t", "tenant_id": "one", "key_id": "loader", "custom_id": "c", "expires_ms": 1, "value": b"{}"}
    signature = dict(sign_job(private_key, **job))["sluice-signature"]  # type: ignore[arg-type]
    verify_job(entry.public_key, **job, signature_base64=signature)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda file: create_api_key(file, "nobody", "k"), "no tenant 'nobody'"),
        (lambda file: revoke_key(file, "one", "k"), "one has no key 'k'"),
        (lambda file: create_tenant(file, Tenant(tenant_id="one")), "a tenant 'one' already"),
        (lambda file: [create_api_key(file, "one", "k") for _ in range(2)], "one has a key 'k' already"),
    ],
)
def test_mistakes_are_named(file: Path, act: object, message: str) -> None:
    assert callable(act)
    with pytest.raises(TenantsFileError, match=message):
        act(file)


def test_the_first_run_makes_keys_and_the_second_keeps_them(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    keys = provision_keys(data)
    assert set(keys.api_keys) == {"demo", "guarded", "tiny-quota"}
    assert len(keys.deployment_secret) >= 32
    assert stat.S_IMODE(data.keys_file.stat().st_mode) == 0o600
    directory = TomlTenantDirectory(data.tenants_file)
    for tenant_id, api_key in keys.api_keys.items():
        found = directory.by_api_key(api_key)
        assert found is not None
        assert found[0].tenant_id == tenant_id
    assert provision_keys(data) == keys


def test_a_first_run_that_was_cut_short_starts_over(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    secret = provision_keys(data).deployment_secret
    data.tenants_file.unlink()
    keys = provision_keys(data)
    assert keys.deployment_secret == secret
    assert TomlTenantDirectory(data.tenants_file).by_api_key(keys.api_keys["demo"]) is not None


def test_tenants_and_keys_of_the_operators_own_outlive_the_loss_of_the_development_keys(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    old = provision_keys(data)
    create_tenant(data.tenants_file, Tenant(tenant_id="acme"))
    acme_key = create_api_key(data.tenants_file, "acme", "laptop")
    demo_key = create_api_key(data.tenants_file, "demo", "laptop")
    data.keys_file.unlink()

    keys = provision_keys(data)

    directory = TomlTenantDirectory(data.tenants_file)
    assert set(keys.api_keys) == {"demo", "guarded", "tiny-quota"}
    assert all(directory.by_api_key(key) is not None for key in (acme_key, demo_key, keys.api_keys["demo"]))
    assert directory.by_api_key(old.api_keys["demo"]) is None


def test_who_may_read_the_file_may_read_it_after_a_change(file: Path) -> None:
    """An operator's own file may be of the processes' user, and a key made by another."""
    if os.geteuid() == 0:
        os.chown(file, 12_345, 54_321)
    file.chmod(0o640)
    before = file.stat()
    create_api_key(file, "one", "laptop")
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_what_is_created_and_revoked_at_once_is_all_kept(file: Path) -> None:
    """Each change reads the file and writes it anew: without turns, the last one to write undoes the others."""
    for number in range(CHANGES):
        create_api_key(file, "one", f"old-{number}")

    def revoke(number: int) -> None:
        revoke_key(file, "one", f"old-{number}")

    def create(number: int) -> None:
        create_api_key(file, "two", f"new-{number}")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(change, number) for number in range(CHANGES) for change in (revoke, create)]:
            done.result(timeout=60)
    one, two = read_tenants(file)
    assert {key.key_id: key.revoked for key in one.api_keys} == {f"old-{number}": True for number in range(CHANGES)}
    assert {key.key_id for key in two.api_keys} == {f"new-{number}" for number in range(CHANGES)}


def test_a_producer_key_overwrites_no_file_and_leaves_no_key_of_which_nobody_has_the_private_half(file: Path) -> None:
    precious = file.with_name("precious")
    precious.write_text("do not lose me")
    with pytest.raises(TenantsFileError, match="precious"):
        create_producer_key(file, "one", "laptop", precious)
    assert precious.read_text() == "do not lose me"
    assert read_tenants(file)[0].producer_keys == []
