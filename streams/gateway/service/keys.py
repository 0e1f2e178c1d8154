"""Who asks, and what for: an API key is shown, or a token that one has lent."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from schemas.websocket import MAX_KEY_CHARS
from streams.clocks import now_ms
from streams.directory import ApiKey, KeyScope, Tenant, TenantDirectory
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.errors import ApiError
from streams.gateway.service.browser_tokens import Claims, claimed, is_proved, looks_like_token, mint
from streams.keyring import Keyring

MAX_TOKEN_S: Final = 3_600
SKEW_S: Final = 60
"""By so much the clock of the gateway that minted a token may be ahead: one that lasts longer is believed nowhere."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose key was shown, or lent what was. `token`: of what was lent."""

    tenant: Tenant
    key: ApiKey
    token: Claims | None = None

    @property
    def scopes(self) -> frozenset[KeyScope]:
        """A token has no more than its key, also where that lost some since."""
        if self.token is None:
            return self.key.granted
        return frozenset(scope for scope in self.key.granted if scope in self.token.scopes)

    @property
    def end_user(self) -> str:
        """The pseudonym of whom a token was minted for; empty: of nobody in particular."""
        return "" if self.token is None else self.token.end_user

    @property
    def owner(self) -> str | None:
        """Whose it may have of what belongs to end users: everybody's, with an API key."""
        return None if self.token is None else self.token.end_user

    @property
    def expires_at_ms(self) -> int | None:
        """Of a token."""
        return None if self.token is None else self.token.expires_at_s * 1_000

    def require(self, scope: KeyScope) -> None:
        """Raises ApiError 403."""
        if scope not in self.scopes:
            raise permission_denied(f"What was shown may not be used for {scope.value!r}.")

    def require_key(self, what: str) -> None:
        """Raises ApiError 403 for a token: `what` is all of its organisation's, and nothing for pages."""
        if self.token is not None:
            raise permission_denied(f"A token may not be used for {what}; show an API key.")


@dataclass(frozen=True, slots=True)
class Minted:
    token: str
    claims: Claims


class Keys:
    """Knows the keys of a directory, and the tokens that gateways of a region have minted from them."""

    def __init__(
        self, directory: TenantDirectory, secrets: Keyring, region: str, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self._directory = directory
        self._secrets = secrets
        self._region = region
        self._clock_ms = clock_ms

    def authenticate(self, shown: str | None) -> Principal:
        """Raises ApiError 401: `token_expired` for a token that was good, `invalid_api_key` for all else."""
        if not shown or len(shown) > MAX_KEY_CHARS:
            raise _unknown()
        if looks_like_token(shown):
            return self._of_token(shown)
        found = self._directory.by_api_key(shown)
        if found is None:
            raise _unknown()
        return Principal(*found)

    def _of_token(self, token: str) -> Principal:
        claims = claimed(token)
        tenant = None if claims is None else self._directory.tenant(claims.tenant_id)
        key = None if claims is None or tenant is None else tenant.api_key(claims.key_id, self._clock_ms())
        if claims is None or tenant is None or key is None or key.project_id != claims.project_id:
            raise _unknown()
        if not is_proved(self._secrets.accepted, self._region, key.sha256, token):
            raise _unknown()
        left_ms = claims.expires_at_s * 1_000 - self._clock_ms()
        if left_ms <= 0:
            raise ApiError(401, CloseReason.TOKEN_EXPIRED.value, CLOSINGS[CloseReason.TOKEN_EXPIRED].message)
        if left_ms > (MAX_TOKEN_S + SKEW_S) * 1_000:
            raise _unknown()
        return Principal(tenant, key, claims)

    def standing(self) -> Callable[[Principal], bool]:
        """Whether a principal's key may still be used, as of now: all of a tenant are looked at once, whoever has shown
        them. One that another has replaced under its name stands no longer.
        """
        at_ms, known = self._clock_ms(), dict[str, dict[str, str]]()

        def stands(principal: Principal) -> bool:
            tenant_id = principal.tenant.tenant_id
            if (digests := known.get(tenant_id)) is None:
                tenant = self._directory.tenant(tenant_id)
                keys = [] if tenant is None else tenant.api_keys
                digests = known[tenant_id] = {key.key_id: key.sha256 for key in keys if key.stands(at_ms)}
            return digests.get(principal.key.key_id) == principal.key.sha256

        return stands

    def mint(
        self, principal: Principal, expires_in_s: int, scopes: Collection[KeyScope] | None, end_user: str = ""
    ) -> Minted:
        """For `MAX_TOKEN_S` at most, and never longer than it says; of the key's scopes all or some. `end_user`: the
        pseudonym of whom it is for.

        Raises ApiError 403 for a token, and for a scope that the key does not have.
        """
        if principal.token is not None:
            raise permission_denied("A token mints no other; show an API key.")
        granted = principal.key.granted
        if beyond := sorted({*(scopes or ())} - granted):
            raise permission_denied(f"The key may not be used for {beyond[0].value!r} itself.", param="scopes")
        claims = Claims(
            tenant_id=principal.tenant.tenant_id,
            key_id=principal.key.key_id,
            project_id=principal.key.project_id,
            expires_at_s=self._clock_ms() // 1_000 + min(expires_in_s, MAX_TOKEN_S),
            scopes=sorted(scope.value for scope in (granted if scopes is None else {*scopes})),
            end_user=end_user,
        )
        return Minted(mint(self._secrets.current, self._region, principal.key.sha256, claims), claims)


def permission_denied(message: str, param: str | None = None) -> ApiError:
    return ApiError(403, "permission_denied", message, error_type="permission_error", param=param)


def _unknown() -> ApiError:
    return ApiError(401, "invalid_api_key", "The API key is missing or wrong.")
