"""What the node asks of the worker process, and what is asked of the node: ports, which tests put others behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from liftpy_server.workers.requests import WorkerRequest

__all__ = ["Identity", "Worker"]

R = TypeVar("R")


class Worker(Protocol):
    """The process that works on the bucket; see `TierWorker`."""

    async def call(self, request: WorkerRequest[R], /) -> R:
        """Run a job, and return its result.

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
