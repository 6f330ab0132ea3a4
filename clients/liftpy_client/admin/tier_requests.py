"""Administration of the bucket."""

from __future__ import annotations

from liftpy_client.admin.group_requests import GroupAdmin
from liftpy_client.admin.tier import TieredPartition, TierStatus

__all__ = ["TierAdmin", "TierStatus", "TieredPartition"]


class TierAdmin(GroupAdmin):
    """Requests to any node. All of them raise `AdminError` when refused, `NodeUnavailableError` when nobody answers."""

    async def tier_status(self, *, limit: int = 100) -> TierStatus:
        """How the bucket is, and up to `limit` of the partitions that go to it, those in trouble first."""
        return TierStatus.from_answer(await self._read("TIER.STATUS", {"limit": limit}))
