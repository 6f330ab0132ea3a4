"""Keeping pandas out of processes that do not need it.

pyarrow imports pandas, where it is installed, when it first makes an array of Python objects: a third of a second in
which an event loop stands still, and some 50 MiB.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["keep_pandas_out", "let_pandas_in"]


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=name)


def keep_pandas_out() -> None:
    """Make this process one in which pandas can not be imported; for programs, not for libraries."""
    sys.meta_path.insert(0, _NoPandas())


def let_pandas_in() -> None:
    """Undo that, for what needs pandas after all; before Arrow has looked for it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _NoPandas)]
