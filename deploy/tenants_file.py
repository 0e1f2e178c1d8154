"""Writes tenants as the TOML that `streams.toml_directory` reads, and makes their keys."""

import base64
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from deploy.local.folders import write_atomically
from streams.directory import ApiKey, KeyScope, ProducerKey, Role, Tenant
from streams.toml_directory import read_tenants

HEADER = "# Written by `sluice keys`; may be edited by hand. Processes see a change within seconds.\n"


TURN_TIMEOUT_S = 10.0

Key = TypeVar("Key", ApiKey, ProducerKey)


class TenantsFileError(Exception):
    """No such tenant or key, or one too many of it."""


def render(tenants: Iterable[Tenant]) -> str:
    """TOML that reads back as equal tenants; fields at their defaults are left out."""
    return HEADER + tomli_w.dumps({"tenants": [tenant.model_dump(exclude_defaults=True) for tenant in tenants]})


def write_tenants(path: Path, tenants: Iterable[Tenant]) -> None:
    """Replaces the file in one step: a reader sees the old content or the new. A new file is its owner's alone."""
    write_atomically(path, render(tenants), mode=0o600, keep_access=True)


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """One change at a time, of all processes: each reads the file and writes it anew. A reader needs no turn."""
    with path.with_name(f".{path.name}.lock").open("a") as file:
        deadline_s = time.monotonic() + TURN_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise TenantsFileError(f"{path} is being changed by somebody else") from None
                time.sleep(0.01)
        yield


def _change(path: Path, tenant: Tenant) -> None:
    write_tenants(path, [tenant if other.tenant_id == tenant.tenant_id else other for other in read_tenants(path)])


def _tenant(path: Path, tenant_id: str) -> Tenant:
    found = next((tenant for tenant in read_tenants(path) if tenant.tenant_id == tenant_id), None)
    if found is None:
        raise TenantsFileError(
            f"no tenant {tenant_id!r}; there are: {', '.join(t.tenant_id for t in read_tenants(path))}"
        )
    return found


def create_api_key(
    path: Path, tenant_id: str, key_id: str, *, role: Role = Role.USER, scopes: Sequence[KeyScope] = (),
    expires_at: datetime | None = None,
) -> str:  # fmt: skip
    """Adds a key and returns it; only its digest is kept. No scopes: all that its role has.

    Raises TenantsFileError, SettingsError, and ValidationError for a scope that its role does not have.
    """
    with _turn(path):
        tenant = _tenant(path, tenant_id)
        if any(key.key_id == key_id for key in tenant.api_keys):
            raise TenantsFileError(f"{tenant_id} has a key {key_id!r} already")
        api_key = f"sk-sluice-{secrets.token_urlsafe(32)}"
        digest = hashlib.sha256(api_key.encode()).hexdigest()
        entry = ApiKey(key_id=key_id, sha256=digest, role=role, scopes=[*scopes] or None, expires_at=expires_at)
        _change(path, tenant.model_copy(update={"api_keys": [*tenant.api_keys, entry]}))
        return api_key


def create_producer_key(
    path: Path, tenant_id: str, key_id: str, private_key_file: Path, *, expires_at: datetime | None = None
) -> None:
    """Adds an Ed25519 key and writes its private half as PEM into a new file, readable by its owner alone.

    Raises TenantsFileError, also when that file is there already; OSError when it cannot be written. No key is added
    then.
    """
    with _turn(path):
        tenant = _tenant(path, tenant_id)
        if any(key.key_id == key_id for key in tenant.producer_keys):
            raise TenantsFileError(f"{tenant_id} has a producer key {key_id!r} already")
        private_key = Ed25519PrivateKey.generate()
        pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public = private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        _write_new(private_key_file, pem)
        entry = ProducerKey(key_id=key_id, public_key=base64.b64encode(public).decode(), expires_at=expires_at)
        _change(path, tenant.model_copy(update={"producer_keys": [*tenant.producer_keys, entry]}))


def _write_new(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise TenantsFileError(f"{path} is there already, and may be somebody's key; name another file") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def create_tenant(path: Path, tenant: Tenant) -> None:
    """Raises TenantsFileError when its id is taken."""
    with _turn(path):
        tenants = read_tenants(path)
        if any(other.tenant_id == tenant.tenant_id for other in tenants):
            raise TenantsFileError(f"there is a tenant {tenant.tenant_id!r} already")
        write_tenants(path, [*tenants, tenant])


def revoke_key(path: Path, tenant_id: str, key_id: str) -> None:
    """Revokes the API and producer keys of that id. Raises TenantsFileError when there is none."""
    with _turn(path):
        tenant = _tenant(path, tenant_id)
        if key_id not in {*(key.key_id for key in tenant.api_keys), *(key.key_id for key in tenant.producer_keys)}:
            raise TenantsFileError(f"{tenant_id} has no key {key_id!r}")
        _change(
            path,
            tenant.model_copy(
                update={
                    "api_keys": [_revoked(key) if key.key_id == key_id else key for key in tenant.api_keys],
                    "producer_keys": [_revoked(key) if key.key_id == key_id else key for key in tenant.producer_keys],
                }
            ),
        )


def _revoked(key: Key) -> Key:
    return key.model_copy(update={"revoked": True})
