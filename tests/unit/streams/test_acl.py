"""What stands on a cluster beside the list is told, also of those whom the list no longer names."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter

from streams import acl
from streams.access import acls, producers_prefix
from streams.provisioning import DriftError
from streams.settings import KafkaSettings
from streams.topics import Topics


class Cluster:
    """In an admin client's place."""

    def __init__(self) -> None:
        self.bindings: set[AclBinding] = set()

    def describe_acls(self, wanted: AclBindingFilter, request_timeout: float) -> "Future[list[AclBinding]]":
        found: Future[list[AclBinding]] = Future()
        found.set_result([each for each in self.bindings if wanted.principal in (None, each.principal)])
        return found

    def create_acls(self, wanted: Sequence[AclBinding], request_timeout: float) -> "dict[AclBinding, Future[None]]":
        self.bindings.update(wanted)
        done: Future[None] = Future()
        done.set_result(None)
        return dict.fromkeys(wanted, done)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(acl, "AdminClient", lambda _config: cluster)
    return cluster


def apply(tenants: Sequence[str], named: dict[str, str] | None = None, region: str = "eu1") -> Any:
    wanted = acls(Topics(region, ["small"]), tenants, named or {})
    return acl.apply_acls(KafkaSettings(), wanted, ours=producers_prefix(region))


def test_what_a_removed_tenants_producers_may_do_is_told(cluster: Cluster) -> None:
    apply(["acme", "gone"])
    assert not apply(["acme", "gone"]).created
    with pytest.raises(DriftError) as told:
        apply(["acme"])
    assert all("User:sluice-eu1-producer-gone may" in line for line in told.value.differences)
    assert any("may WRITE TOPIC eu1.intake.batch" in line for line in told.value.differences)


def test_what_others_may_do_on_a_shared_cluster_is_theirs(cluster: Cluster) -> None:
    for region in ("eu1", "eu10", "us1"):
        apply(["acme"], {"billing": "User:CN=billing"} if region == "us1" else {}, region)
    for region in ("eu1", "eu10", "us1"):
        assert not apply(["acme"], {"billing": "User:CN=billing"} if region == "us1" else {}, region).created
