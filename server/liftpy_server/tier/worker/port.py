"""What the node asks of the worker process, and what is asked of the node: ports, which tests put others behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.workers.requests import WorkerRequest

__all__ = ["Identity", "Worker"]

R = TypeVar("R")


class Worker(Protocol):
    """The process that works on the bucket; see `TierWorker`."""

    async def call(self, request: WorkerRequest[R], /, told: Callable[[Any], None] | None = None) -> R:
        """Run a job, and return its result.

        Args:
            request: What is wanted.
            told: Called with each part of the work that is done, where the job tells of parts; also when nobody waits
                for the result any more.

        Raises:
            TierWorkError: it failed.
        """
        ...

    async def close(self) -> None:
        """End the process."""
        ...


class Identity(Protocol):
    """Who this node is."""

    @property
    def node_id(self) -> str:
        """Id of the node."""

    @property
    def incarnation(self) -> int:
        """How often it has registered."""

    @property
    def cluster_id(self) -> str:
        """Id of the cluster."""
