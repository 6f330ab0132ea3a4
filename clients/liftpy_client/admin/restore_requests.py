"""Administration of what a cluster brings back from its bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_client.admin.group_requests import GroupAdmin
from liftpy_client.admin.restoring import RestoredStream, RestorePlan, apply_restore, plan_restore, verify_restore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RestoreAdmin", "RestorePlan", "RestoredStream"]


class RestoreAdmin(GroupAdmin):
    """Requests to any node. All of them raise `AdminError` when refused, `NodeUnavailableError` when nobody answers."""

    async def restore_plan(self, *, progress: Callable[[int, int], None] | None = None) -> RestorePlan:
        """What the bucket of this cluster holds, and up to where; changes nothing.

        Args:
            progress: told of how many partitions were looked at, of how many.
        """
        return await plan_restore(self._cluster, progress)

    async def restore(
        self,
        plan: RestorePlan | None = None,
        *,
        replicas_max: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[RestoredStream]:
        """Bring back every stream that the bucket has, to a cluster that has no others. May be repeated.

        Consumers that had read what did not reach the bucket get a `LogDivergedError` or an `OffsetLostError`.

        Args:
            plan: of `restore_plan`; by default, made now.
            replicas_max: so many copies at most, where there are fewer nodes than a stream had replicas.
            progress: told of how many partitions are back, of how many.

        Returns:
            What became of each stream that was not here; those with a problem are not back.

        Raises:
            AdminError: there is no bucket, or nothing in it; this cluster has other streams; or another cluster still
                writes to the bucket.
        """
        plan = await self.restore_plan() if plan is None else plan
        return await apply_restore(self._cluster, plan, replicas_max=replicas_max, progress=progress)

    async def verify_restore(self, plan: RestorePlan, *, within_s: float = 30.0) -> list[str]:
        """What is amiss of what a plan says should be here, for people; nothing when all is well.

        Args:
            plan: that was carried out.
            within_s: for how long it is looked again while something is amiss: leaders are elected first.
        """
        return await verify_restore(self._cluster, plan, within_s=within_s)
