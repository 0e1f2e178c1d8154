"""The TOML-backed tenant directory, and the model catalogue that settings hold."""

import hashlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from streams.clocks import now_ms
from streams.directory import ApiKey, Model, Pool, ProducerKey, Tenant
from streams.settings import Settings, SettingsError

RELOAD_S = 1.0
_log = structlog.get_logger()


class TenantsUnreadable(SettingsError):
    """The file could not be read, whatever it holds: another moment may be better."""


class _TenantsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tenants: list[Tenant]


def read_tenants(path: Path) -> list[Tenant]:
    """Raises SettingsError, one line per wrong field; TenantsUnreadable."""
    try:
        tenants = _TenantsFile.model_validate(tomllib.loads(path.read_text())).tenants
    except OSError as error:
        raise TenantsUnreadable(f"tenants_file: {error}") from None
    except ValidationError as error:
        lines = (f"{path.name}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise SettingsError("\n".join(lines)) from None
    except ValueError as error:
        raise SettingsError(f"{path.name}: {error}") from None
    ids = [tenant.tenant_id for tenant in tenants]
    digests = [key.sha256 for tenant in tenants for key in tenant.api_keys]
    if len(set(ids)) != len(ids):
        raise SettingsError(f"{path.name}: two tenants have the same tenant_id")
    if len(set(digests)) != len(digests):
        raise SettingsError(f"{path.name}: two API keys have the same sha256")
    for tenant in tenants:
        for kind, keys in (("API", tenant.api_keys), ("producer", tenant.producer_keys)):
            key_ids = [key.key_id for key in keys]
            if len(set(key_ids)) != len(key_ids):
                raise SettingsError(f"{path.name}: two {kind} keys of {tenant.tenant_id} have the same key_id")
    return tenants


class TomlTenantDirectory:
    """Re-reads its file when it changed, looking at most once per `RELOAD_S`.

    A file that became invalid or unreadable keeps the last good content in force and is logged as an error, once. What
    could not be read is read again, also if nothing of the file changes: a revocation may stand in it.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = monotonic, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        """`clock` counts seconds; `clock_ms` is Unix time, by which keys are over."""
        self._path = path
        self._clock = clock
        self._clock_ms = clock_ms
        self._looked_at = clock()
        self._stamp = self._told = self._file_stamp()
        self._load(read_tenants(path))

    def _file_stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _load(self, tenants: list[Tenant]) -> None:
        self._by_id = {tenant.tenant_id: tenant for tenant in tenants}
        self._by_digest = {key.sha256: (tenant, key) for tenant in tenants for key in tenant.api_keys}

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._looked_at < RELOAD_S:
            return
        self._looked_at = now
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return
        try:
            self._load(read_tenants(self._path))
            self._stamp = stamp
        except SettingsError as error:
            if not isinstance(error, TenantsUnreadable):
                self._stamp = stamp
            if stamp != self._told:
                _log.error("tenants_file_invalid", error=str(error))
        self._told = stamp

    def tenant(self, tenant_id: str) -> Tenant | None:
        self._refresh()
        return self._by_id.get(tenant_id)

    def by_api_key(self, api_key: str) -> tuple[Tenant, ApiKey] | None:
        self._refresh()
        found = self._by_digest.get(hashlib.sha256(api_key.encode()).hexdigest())
        return found if found is not None and found[1].stands(self._clock_ms()) else None

    def producer_key(self, tenant_id: str, key_id: str) -> ProducerKey | None:
        tenant = self.tenant(tenant_id)
        if tenant is None:
            return None
        at_ms = self._clock_ms()
        return next((key for key in tenant.producer_keys if key.key_id == key_id and key.stands(at_ms)), None)

    def tenants(self) -> list[Tenant]:
        self._refresh()
        return list(self._by_id.values())


class SettingsCatalog:
    """The models and pools of the settings; they change with a restart."""

    def __init__(self, settings: Settings) -> None:
        self._models = list(settings.models)
        self._by_name = {name: model for model in settings.models for name in (model.name, *model.aliases)}
        self._pools = {pool.name: pool for pool in settings.pools}

    def model(self, name_or_alias: str) -> Model | None:
        return self._by_name.get(name_or_alias)

    def models(self) -> list[Model]:
        return list(self._models)

    def pool(self, name: str) -> Pool:
        """Raises KeyError for an unknown pool."""
        return self._pools[name]

    def pools(self) -> list[Pool]:
        return list(self._pools.values())
