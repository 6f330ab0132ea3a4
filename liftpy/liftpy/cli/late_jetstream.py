"""nats-py's JetStream in programs that need none of it: its classes are a third of what importing nats-py costs."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import LazyLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["load_jetstream_late"]


class _LateJetStream(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name != "nats.js":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def load_jetstream_late() -> None:
    """Make this process one that loads `nats.js` when something of it is used; for programs, not for libraries."""
    sys.meta_path.insert(0, _LateJetStream())
