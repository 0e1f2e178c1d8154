"""Who asks."""

from dataclasses import dataclass

from streams.directory import ApiKey, Tenant, TenantDirectory
from streams.gateway.errors import ApiError

MAX_KEY_CHARS = 512


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose key was shown."""

    tenant: Tenant
    key: ApiKey


def authenticate(directory: TenantDirectory, api_key: str | None) -> Principal:
    """Raises ApiError 401."""
    found = None if not api_key or len(api_key) > MAX_KEY_CHARS else directory.by_api_key(api_key)
    if found is None:
        raise ApiError(401, "invalid_api_key", "The API key is missing or wrong.")
    return Principal(*found)
