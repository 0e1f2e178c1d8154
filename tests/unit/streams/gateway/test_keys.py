"""What proves a token, and what it may be used for, whatever is done to it and whatever the clock says."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streams.directory import SCOPES_OF_ROLE, ApiKey, KeyScope, ProducerKey, Role, Tenant
from streams.gateway.errors import ApiError
from streams.gateway.service.browser_tokens import Claims, claimed, is_proved, mint
from streams.gateway.service.keys import MAX_TOKEN_S, SKEW_S, Keys
from streams.keyring import Keyring

OLD, NEW = b"o" * 32, b"n" * 32
KEY = "sk-test"
NOW_MS = 1_790_000_000_500
NAMES = st.text(min_size=1, max_size=64)


class Directory:
    """One tenant, as it stands."""

    def __init__(self, *keys: ApiKey) -> None:
        self.keys = [*keys]

    def tenant(self, tenant_id: str) -> Tenant | None:
        return Tenant(tenant_id="acme", api_keys=self.keys) if tenant_id == "acme" else None

    def by_api_key(self, api_key: str) -> tuple[Tenant, ApiKey] | None:
        tenant, digest = self.tenants()[0], hashlib.sha256(api_key.encode()).hexdigest()
        found = next((key for key in self.keys if key.sha256 == digest and not key.revoked), None)
        return None if found is None else (tenant, found)

    def producer_key(self, tenant_id: str, key_id: str) -> ProducerKey | None:
        return None

    def tenants(self) -> list[Tenant]:
        return [Tenant(tenant_id="acme", api_keys=self.keys)]


def key(**fields: object) -> ApiKey:
    given = {"key_id": "k1", "sha256": hashlib.sha256(KEY.encode()).hexdigest(), **fields}
    return ApiKey.model_validate(given)


def keys(
    directory: Directory, *, now_ms: int = NOW_MS, region: str = "here", secrets: tuple[bytes, ...] = (NEW,)
) -> Keys:
    return Keys(directory, Keyring(secrets), region, lambda: now_ms)


def lent(directory: Directory, *scopes: KeyScope, for_s: int = 600, secrets: tuple[bytes, ...] = (NEW,)) -> str:
    of = keys(directory, secrets=secrets)
    return of.mint(of.authenticate(KEY), for_s, scopes or None).token


def code_of(of: Keys, shown: str) -> str:
    try:
        of.authenticate(shown)
    except ApiError as error:
        return error.code if error.status == 401 else f"{error.status}"
    return ""


@given(names=st.tuples(NAMES, NAMES, NAMES), expires_at_s=st.integers(0, 2**40), scopes=st.lists(NAMES, max_size=4))
def test_what_a_token_names_is_read_back_and_proved_by_its_own_secret_key_and_region_alone(
    names: tuple[str, str, str], expires_at_s: int, scopes: list[str]
) -> None:
    tenant_id, key_id, project_id = names
    claims = Claims(
        tenant_id=tenant_id, key_id=key_id, project_id=project_id, expires_at_s=expires_at_s, scopes=scopes
    )  # fmt: skip
    token = mint(NEW, "here", "d1", claims)
    assert claimed(token) == claims
    assert is_proved((OLD, NEW), "here", "d1", token)
    assert not is_proved((OLD,), "here", "d1", token)
    assert not is_proved((NEW,), "there", "d1", token)
    assert not is_proved((NEW,), "here", "d2", token)


@given(data=st.data())
def test_a_token_that_was_changed_anywhere_is_nobodys(data: st.DataObject) -> None:
    directory = Directory(key())
    token = lent(directory)
    place = data.draw(st.integers(0, len(token) - 1))
    kind = data.draw(st.sampled_from(["cut", "changed", "longer"]))
    letter = data.draw(st.sampled_from("AZaz09-_.=\n é"))
    changed = {
        "cut": token[:place], "changed": token[:place] + letter + token[place + 1 :],
        "longer": token[:place] + letter + token[place:],
    }[kind]  # fmt: skip
    if changed == token:
        return
    assert code_of(keys(directory), changed) == "invalid_api_key"


@given(shown=st.text(max_size=200))
def test_no_text_that_looks_like_one_fails_otherwise(shown: str) -> None:
    assert code_of(keys(Directory(key())), f"st-sluice-{shown}") == "invalid_api_key"


@pytest.mark.parametrize(
    ("at_ms", "code"),
    [
        (NOW_MS, ""),
        (1_790_000_600_000 - 1, ""),
        (1_790_000_600_000, "token_expired"),
        (NOW_MS + 10**10, "token_expired"),
        (1_790_000_600_000 - (MAX_TOKEN_S + SKEW_S) * 1_000, ""),
        (1_790_000_600_000 - (MAX_TOKEN_S + SKEW_S) * 1_000 - 1, "invalid_api_key"),
    ],
)
def test_it_lasts_as_long_as_was_said_and_no_clock_makes_that_more_than_an_hour(at_ms: int, code: str) -> None:
    directory = Directory(key())
    assert code_of(keys(directory, now_ms=at_ms), lent(directory)) == code


def test_only_who_was_given_a_token_learns_that_it_has_expired() -> None:
    directory = Directory(key())
    late = keys(directory, now_ms=NOW_MS + 10**9)
    token = lent(directory)
    assert code_of(late, token) == "token_expired"
    assert code_of(late, token[:-1] + ("A" if token[-1] != "A" else "B")) == "invalid_api_key"


def test_another_deployments_token_and_another_regions_are_nobodys() -> None:
    directory = Directory(key())
    token = lent(directory)
    assert code_of(keys(directory, secrets=(OLD,)), token) == "invalid_api_key"
    assert code_of(keys(directory, region="there"), token) == "invalid_api_key"


def test_a_rotation_keeps_what_was_minted_before() -> None:
    directory = Directory(key())
    before, during, after = ((OLD,), (NEW, OLD), (NEW,))
    token = lent(directory, secrets=before)
    assert code_of(keys(directory, secrets=during), token) == ""
    assert code_of(keys(directory, secrets=after), token) == "invalid_api_key"
    assert code_of(keys(directory, secrets=after), lent(directory, secrets=during)) == ""


@pytest.mark.parametrize(
    "becomes",
    [
        [], [key(revoked=True)], [key(key_id="other")], [key(sha256="0" * 64)], [key(project_id="other")],
    ],
    ids=["gone", "revoked", "another id", "another key of that id", "of another project"],
)  # fmt: skip
def test_it_is_nobodys_once_its_key_is_not_what_it_was(becomes: list[ApiKey]) -> None:
    directory = Directory(key())
    token = lent(directory)
    assert code_of(keys(directory), token) == ""
    directory.keys = becomes
    assert code_of(keys(directory), token) == "invalid_api_key"


@given(role=st.sampled_from(Role), data=st.data())
def test_a_token_never_has_more_than_its_key_has_now(role: Role, data: st.DataObject) -> None:
    of_role = sorted(SCOPES_OF_ROLE[role])
    some = st.none() | st.lists(st.sampled_from(of_role), min_size=1)
    directory = Directory(key(role=role, scopes=data.draw(some)))
    granted = directory.keys[0].granted
    asked = data.draw(st.lists(st.sampled_from(sorted(KeyScope)), min_size=1))
    if not granted.issuperset(asked):
        with pytest.raises(ApiError) as refusal:
            lent(directory, *asked)
        assert (refusal.value.status, refusal.value.code, refusal.value.param) == (403, "permission_denied", "scopes")
        return
    token = lent(directory, *asked)
    assert keys(directory).authenticate(token).scopes == frozenset(asked)
    directory.keys = [key(role=role, scopes=data.draw(some))]
    assert keys(directory).authenticate(token).scopes == frozenset(asked) & directory.keys[0].granted


def test_a_token_mints_no_other() -> None:
    directory = Directory(key())
    of = keys(directory)
    with pytest.raises(ApiError) as refusal:
        of.mint(of.authenticate(lent(directory)), 60, None)
    assert (refusal.value.status, refusal.value.code) == (403, "permission_denied")


def test_a_key_has_what_its_role_has_or_less() -> None:
    assert key().granted == {KeyScope.RESPONSES, KeyScope.USAGE}, "what every key could do before there were scopes"
    assert key(role="analyst").granted == {KeyScope.USAGE}
    assert key(role="admin").granted == frozenset(KeyScope)
    assert key(scopes=["usage"]).granted == {KeyScope.USAGE}
    wrongs: list[dict[str, object]] = [
        {"role": "analyst", "scopes": ["responses"]}, {"scopes": []}, {"scopes": ["all"]}, {"role": "root"},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValidationError):
            key(**wrong)


@pytest.mark.parametrize(
    ("now", "stands"),
    [
        ([key()], True),
        ([key(revoked=True)], False),
        ([key(expires_at="2026-09-21T14:13:21Z")], True),
        ([key(expires_at="2026-09-21T14:13:20Z")], False),
        ([key(sha256="0" * 64)], False),
        ([key(key_id="k2")], False),
        ([], False),
        ([key(scopes=["usage"]), key(key_id="k2", sha256="0" * 64)], True),
    ],
    ids=["as it was", "revoked", "not over yet", "over", "another of its name", "renamed", "gone", "with fewer scopes"],
)
def test_what_has_become_of_a_key_that_was_shown(now: list[ApiKey], stands: bool) -> None:
    assert NOW_MS == 1_790_000_000_500, "2026-09-21 14:13:20.5 UTC"
    directory = Directory(key())
    of = keys(directory)
    shown, token = of.authenticate(KEY), of.authenticate(lent(directory))
    directory.keys = now
    assert [of.standing()(each) for each in (shown, token)] == [stands] * 2


def test_a_token_falls_with_its_key_when_that_is_over() -> None:
    directory = Directory(key())
    token = lent(directory)
    directory.keys = [key(expires_at="2026-09-21T14:13:20Z")]
    assert code_of(keys(directory), token) == "invalid_api_key"


def test_a_key_is_looked_up_once_however_many_have_shown_it() -> None:
    directory = Directory(key())
    of = keys(directory)
    shown, stands = of.authenticate(KEY), of.standing()
    assert stands(shown)
    directory.keys = []
    assert stands(shown)
    assert not of.standing()(shown)
