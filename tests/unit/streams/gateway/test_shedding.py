"""What tenants have beyond their bounds goes in slices, of each in its turn."""

import pytest

from streams.gateway.shedding import Grown


class Kept:
    """So many each tenant has beyond its bound; three of them go at once."""

    def __init__(self, **beyond: int) -> None:
        self.beyond = beyond
        self.asked: list[str] = []
        self.away: set[str] = set()

    async def shed(self, tenant_id: str) -> int:
        self.asked.append(tenant_id)
        if tenant_id in self.away:
            raise ConnectionError
        went = min(self.beyond[tenant_id], 3)
        self.beyond[tenant_id] -= went
        return went


def grown(*tenant_ids: str) -> Grown:
    grown = Grown("something_shed")
    for tenant_id in tenant_ids:
        grown.grew(tenant_id)
    return grown


async def test_nobody_is_looked_at_who_has_stored_nothing_since() -> None:
    kept, tenants = Kept(acme=2, umbrella=2), grown("acme")
    await tenants.shed(kept.shed, 10)
    await tenants.shed(kept.shed, 10)
    assert kept.beyond == {"acme": 0, "umbrella": 2}
    assert kept.asked == ["acme", "acme"], "until nothing of it is left"


async def test_who_has_more_than_a_turn_takes_has_another() -> None:
    kept, tenants = Kept(acme=7, umbrella=2), grown("acme", "umbrella")
    await tenants.shed(kept.shed, 2)
    assert kept.beyond == {"acme": 1, "umbrella": 0}
    await tenants.shed(kept.shed, 2)
    assert kept.beyond == {"acme": 0, "umbrella": 0}


async def test_who_is_looked_at_in_vain_comes_last() -> None:
    kept, tenants = Kept(acme=2, umbrella=2), grown("acme", "umbrella")
    kept.away.add("acme")
    with pytest.raises(ConnectionError):
        await tenants.shed(kept.shed, 10)
    kept.away.clear()
    kept.asked.clear()
    await tenants.shed(kept.shed, 10)
    assert list(dict.fromkeys(kept.asked)) == ["umbrella", "acme"]
    assert kept.beyond == {"acme": 0, "umbrella": 0}
