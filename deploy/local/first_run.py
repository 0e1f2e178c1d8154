"""What the first run makes in an empty data folder: the deployment's secret, demonstration tenants, their keys."""

from pathlib import Path

from deploy.local.data_folder import DataFolder, Keys, ProducerFile, new_deployment_secret
from deploy.tenants_file import create_api_key, create_producer_key, write_tenants
from streams.directory import Tenant
from streams.toml_directory import read_tenants

TEMPLATE = Path(__file__).parent / "tenants.toml"
KEY_ID = "dev"
PRODUCER_KEY_ID = "dev-producer"


def provision_keys(data: DataFolder, tenants_file: Path | None = None, template: Path = TEMPLATE) -> Keys:
    """The folder's keys, made now if it has none. Keys are written last: a crash before that starts over.

    Tenants that stand in the folder stay, with all but their development keys, which nobody knows any more.
    A `tenants_file` of the operator's own is left as it is: its keys are known to the operator alone.
    """
    if tenants_file is not None and tenants_file != data.tenants_file:
        if not data.keys_file.exists():
            data.write_keys(Keys(deployment_secret=new_deployment_secret()))
        return data.keys()
    if data.keys_file.exists() and data.tenants_file.exists():
        return data.keys()
    demonstrated = [tenant.tenant_id for tenant in read_tenants(template)]
    tenants = read_tenants(data.tenants_file if data.tenants_file.exists() else template)
    write_tenants(data.tenants_file, [_without_development_keys(tenant) for tenant in tenants])
    api_keys, producers = {}, {}
    for tenant in tenants:
        if tenant.tenant_id not in demonstrated:
            continue
        api_keys[tenant.tenant_id] = create_api_key(data.tenants_file, tenant.tenant_id, KEY_ID)
        key_file = data.producer_key_file(tenant.tenant_id)
        key_file.unlink(missing_ok=True)  # of a first run that was cut short
        create_producer_key(data.tenants_file, tenant.tenant_id, PRODUCER_KEY_ID, key_file)
        producers[tenant.tenant_id] = ProducerFile(key_id=PRODUCER_KEY_ID, key_file=str(key_file))
    secret = data.keys().deployment_secret if data.keys_file.exists() else new_deployment_secret()
    keys = Keys(deployment_secret=secret, api_keys=api_keys, producers=producers)
    data.write_keys(keys)
    return keys


def _without_development_keys(tenant: Tenant) -> Tenant:
    return tenant.model_copy(
        update={
            "api_keys": [key for key in tenant.api_keys if key.key_id != KEY_ID],
            "producer_keys": [key for key in tenant.producer_keys if key.key_id != PRODUCER_KEY_ID],
        }
    )
