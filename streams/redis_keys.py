"""Every key that Sluice has in Redis. Each begins with `sluice:<region>:`; braces are the hash tag of Redis Cluster.

Quota and claims decide, and must stand in a Redis that evicts nothing. History is a copy of the log: it may be evicted,
and may stand in a Redis of its own.
"""


def quota_epoch(region: str) -> str:
    """Which memory of the quota store this is; without it that memory was lost."""
    return f"sluice:{region}:epoch"


def quota(region: str, tenant_id: str, name: str) -> str:
    """All of a tenant's quota keys lie in one slot, since one script touches them together."""
    return f"sluice:{region}:quota:{{{tenant_id}}}:{name}"


def claim(region: str, response_id: str) -> str:
    """Which incarnation of a worker claims a response. In one slot with the leases: a script touches both."""
    return f"sluice:{region}:{{{region}}}:claim:{response_id}"


def lease(region: str, incarnation: str) -> str:
    """Lives while that incarnation does. With an empty incarnation: what all leases begin with."""
    return f"sluice:{region}:{{{region}}}:lease:{incarnation}"


def claim_of_the_release_before(region: str, pool: str, response_id: str) -> str:
    """Where 0.1.0 kept it. To go with the release after this one."""
    return f"sluice:{region}:claims:{{{pool}}}:claim:{response_id}"


def lease_of_the_release_before(region: str, pool: str, incarnation: str) -> str:
    """With an empty incarnation: what all leases of the pool begin with."""
    return f"sluice:{region}:claims:{{{pool}}}:lease:{incarnation}"


def history(region: str, tenant_id: str, response_id: str) -> str:
    """The packed entries of one response, for replay. The tenant is part of it: nobody finds what another one owns."""
    return f"sluice:{region}:history:{tenant_id}:{response_id}"


def history_left_to_log(region: str, partition: int) -> str:
    """Until when (Unix milliseconds) responses of that partition of `responses` may have been left to the log alone."""
    return f"sluice:{region}:history-left-to-log:{partition}"


def watched(region: str, response_id: str) -> str:
    """Lives while a gateway that does not own the response says that it has a viewer of it. In the Redis of history."""
    return f"sluice:{region}:watched:{response_id}"


def watches_epoch(region: str) -> str:
    """Which memory of those leases this is; another one may have lost some. In the Redis of history."""
    return f"sluice:{region}:watches-epoch"
