"""Brings a cluster's ACLs to what `streams.access` says, and refuses a cluster that allows more."""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType as Pattern
from confluent_kafka.admin._resource import ResourceType

from streams.access import Acl, Grant, Kind, Operation
from streams.log.kafka import client_config, log_error
from streams.provisioning import DriftError
from streams.settings import KafkaSettings

_CALL_TIMEOUT_S = 10.0
_RETRY_S = 0.1
_KINDS = {
    Kind.TOPIC: ResourceType.TOPIC, Kind.GROUP: ResourceType.GROUP, Kind.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID
}  # fmt: skip
_OPERATIONS = {
    Operation.READ: AclOperation.READ, Operation.WRITE: AclOperation.WRITE, Operation.DESCRIBE: AclOperation.DESCRIBE
}  # fmt: skip
_ANY_HOST = "*"


@dataclass(frozen=True, slots=True)
class AclReport:
    created: tuple[Acl, ...]
    present: tuple[Acl, ...]


def apply_acls(settings: KafkaSettings, wanted: Sequence[Acl], *, ours: str, timeout_s: float = 30) -> AclReport:
    """Creates what is missing, and waits until a broker goes by it: the controller has it first. Idempotent.

    Raises DriftError before anything is created where one of these principals, or one whose name begins with `ours`,
    may do more than it should, or less by a denial; TimeoutError; LogError, also where the cluster has no authorizer.
    """
    deadline_s = time.monotonic() + timeout_s
    admin = AdminClient({**client_config(settings, "provisioning"), "log_level": 0})
    bindings = {_binding(acl): acl for acl in wanted}
    principals = {acl.principal for acl in wanted}
    found = _found(admin, principals, ours)
    strange = [binding for binding in found if binding not in bindings]
    if strange:
        raise DriftError(sorted(_told(binding) for binding in strange))
    missing = [binding for binding in bindings if binding not in found]
    _create(admin, missing)
    while not _found(admin, principals, ours).issuperset(missing):
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"no broker knows the new ACLs after {timeout_s:g} s")
        time.sleep(_RETRY_S)
    return AclReport(
        tuple(sorted(bindings[binding] for binding in missing)),
        tuple(sorted(acl for binding, acl in bindings.items() if binding in found)),
    )


def _binding(acl: Acl) -> AclBinding:
    grant: Grant = acl.grant
    return AclBinding(
        _KINDS[grant.kind], grant.name, Pattern.PREFIXED if grant.prefixed else Pattern.LITERAL, acl.principal,
        _ANY_HOST, _OPERATIONS[grant.operation], AclPermissionType.ALLOW,
    )  # fmt: skip


def _found(admin: AdminClient, principals: Collection[str], ours: str) -> set[AclBinding]:
    """What a broker knows of these, and of all whose names begin with `ours`."""
    every = _all_known(admin)
    return {binding for binding in every if binding.principal in principals or binding.principal.startswith(ours)}


def _all_known(admin: AdminClient) -> Iterable[AclBinding]:
    """A filter takes no beginning of a name."""
    anything: str = None  # type: ignore[assignment]  # what the filter takes for "any name" and "any host"
    every = AclBindingFilter(
        ResourceType.ANY, anything, Pattern.ANY, anything, anything, AclOperation.ANY, AclPermissionType.ANY
    )
    try:
        asked = admin.describe_acls(every, request_timeout=_CALL_TIMEOUT_S)
        found: Iterable[AclBinding] = asked.result(_CALL_TIMEOUT_S)
    except KafkaException as error:
        raise log_error(error.args[0], "describe ACLs") from None
    return found


def _create(admin: AdminClient, missing: list[AclBinding]) -> None:
    if not missing:
        return
    for binding, future in admin.create_acls(missing, request_timeout=_CALL_TIMEOUT_S).items():
        try:
            future.result(_CALL_TIMEOUT_S)
        except KafkaException as error:
            raise log_error(error.args[0], f"create the ACL of {binding.principal}") from None


def _told(binding: AclBinding) -> str:
    operation, kind = AclOperation(binding.operation), ResourceType(binding.restype)
    permission = "is denied" if binding.permission_type is AclPermissionType.DENY else "may"
    pattern = "all that begin with " if binding.resource_pattern_type is Pattern.PREFIXED else ""
    return (
        f"{binding.principal} {permission} {operation.name} {kind.name} {pattern}{binding.name}"
        f" from {binding.host}, which is not in the list"
    )
