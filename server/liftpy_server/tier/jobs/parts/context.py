"""What the jobs of a tier worker share: the store, what they know of manifests, and the memory there is."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.manifest.stream_sets.file import SetManifestFile, page_cache
from liftpy_bucket.store.counting import CountingStore
from liftpy_server.tier.jobs.parts.loaded_cache import LoadedCache
from liftpy_server.tier.jobs.parts.memory_budget import MemoryBudget
from liftpy_server.tier.jobs.parts.naming import Naming
from liftpy_server.tier.jobs.parts.object_buffer import ObjectBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftpy_bucket.manifest.root.file import Loaded, RootFile
    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["LONG_NS", "Context"]

LONG_NS: Final = 4 * 10**9
"""How long a job of a partition may last before it begins no further object: others wait for it."""

_GRACE_NS: Final = 3_600 * 10**9
_MAPPED_BYTES_MAX: Final = 256 * 1024 * 1024  # of files that are being sent; larger ones are sent alone
_FILES_MAX: Final = 64  # each keeps a few snapshots, of some hundred KiB at most
_POINTERS_MAX: Final = 100_000  # in cached roots and set manifests: some 50 MiB


def _weigh_root(loaded: Loaded) -> int:
    root = loaded.root
    return 4 + len(root.fragments) + len(root.snapshots) + len(root.claims) + len(root.commits) // 8


def _weigh_set(loaded: LoadedSet) -> int:
    manifest = loaded.manifest
    return 4 + len(manifest.objects) + len(manifest.pages) + len(manifest.packs)


def _to_nobody(_part: Any) -> None:
    pass


class Context:
    """What the jobs of one worker share; any number of threads may use it.

    Args:
        store: The bucket; every request is counted.
        new_id: A new name for an attempt, each time another one.
        now_ns: The wall clock, ns since the epoch.
        memory_bytes_max: Memory that jobs work with at a time, bytes: objects that are made in memory, and what goes
            into them.
        object_bytes: How large merging makes stream objects.
        grace_ns: How long a shared object that no manifest names may lie around.

    Attributes:
        pages: Pages of set manifests.
        sets_looked_ns: When all roots were read last of which shared objects of a node hold something, by node.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        new_id: Callable[[], str],
        now_ns: Callable[[], int],
        memory_bytes_max: int,
        object_bytes: int,
        grace_ns: int = _GRACE_NS,
    ) -> None:
        self.store = CountingStore(store)
        self.new_id = new_id
        self.naming = Naming(self.store, new_id)
        self.now_ns = now_ns
        self.memory = MemoryBudget(memory_bytes_max)
        self.mapped = MemoryBudget(_MAPPED_BYTES_MAX)
        self.buffers = ObjectBuffers()
        self.object_bytes = object_bytes
        self.grace_ns = grace_ns
        self.files: LoadedCache[RootFile] = LoadedCache(_FILES_MAX, lambda _file: 1)
        self.roots: LoadedCache[Loaded] = LoadedCache(_POINTERS_MAX, _weigh_root, lambda loaded: loaded.root.version)
        self.sets: LoadedCache[LoadedSet] = LoadedCache(
            _POINTERS_MAX, _weigh_set, lambda loaded: loaded.manifest.version
        )
        self.pages = page_cache()
        self.sets_looked_ns: dict[str, int] = {}
        self._progress = threading.local()

    def set_file(self, node: str) -> SetManifestFile:
        """What reads and writes the set manifest of a node."""
        return SetManifestFile(self.store, node, new_id=self.new_id, pages=self.pages)

    def progress(self) -> None:
        """Say that the job of this thread still runs."""
        self.teller()(None)

    def teller(self) -> Callable[[Any], None]:
        """Says what the job of this thread has done by now, see `WorkerRequest.part`; any thread may call it."""
        tell: Callable[[Any], None] = getattr(self._progress, "tell", _to_nobody)
        return tell

    @contextmanager
    def progress_to(self, tell: Callable[[Any], None]) -> Iterator[None]:
        """What `tell` does in this thread as long as this lasts."""
        self._progress.tell = tell
        try:
            yield
        finally:
            del self._progress.tell
