"""What a tenant may use, by the directory of this moment."""

from streams.directory import Limits, TenantDirectory


def limits_of(tenant_id: str, directory: TenantDirectory) -> Limits:
    tenant = directory.tenant(tenant_id)
    return Limits() if tenant is None else tenant.limits
