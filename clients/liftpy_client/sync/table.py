"""Tables for synchronous code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from liftpy_client.sync.background import EnteredFacade, blocking, on_loop
from liftpy_client.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_client.table.changes import Change

__all__ = ["SyncTable"]

_V = TypeVar("_V")
_Default = TypeVar("_Default")


class SyncTable(EnteredFacade[Table[Any]], Generic[_V]):
    """A live view of a stream, the last value of every key; see `Table`. To be used in a `with`, which fills it.

    Each question goes from thread to thread: for many keys, `dict(table.items())` asks once.
    """

    def __getitem__(self, key: bytes) -> _V:
        """The value of a key; raises as `Table` does."""
        value: _V = self._loop.call(lambda: self._inner[key])
        return value

    @overload
    def get(self, key: bytes) -> _V | None: ...
    @overload
    def get(self, key: bytes, default: _Default) -> _V | _Default: ...
    def get(self, key: bytes, default: Any = None) -> Any:
        """The value of a key, or a default when it is not there; raises as `Table` does."""
        return self._loop.call(lambda: self._inner.get(key, default))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys())

    @property
    def is_closed(self) -> bool:
        """Whether it has ended: it was closed, or it has failed."""
        return self._loop.call(lambda: self._inner.is_closed)

    def items(self) -> list[tuple[bytes, _V]]:
        """The keys that are there now, with their values; raises as `Table` does."""
        return self._loop.call(lambda: list(self._inner.items()))

    def values(self) -> list[_V]:
        """The values that are there now; raises as `Table` does."""
        return self._loop.call(lambda: list(self._inner.values()))

    def changes(self, *, changes_max: int = 10_000, bytes_max: int = 16 * 1024 * 1024) -> Iterator[Change[_V]]:
        """What changes from now on, with `for`; arguments and errors as for `Table.changes`."""
        changes = self._loop.call(lambda: self._inner.changes(changes_max=changes_max, bytes_max=bytes_max))

        async def step() -> Change[_V] | None:
            return await anext(changes, None)

        def iterate() -> Iterator[Change[_V]]:
            try:
                while (change := self._loop.run(step())) is not None:
                    yield change
            finally:
                self._loop.end(close)

        async def close() -> None:
            changes.close()

        return iterate()

    __contains__ = on_loop(Table.__contains__)
    __len__ = on_loop(Table.__len__)
    keys = on_loop(Table.keys)
    offset = on_loop(Table.offset)
    to_arrow = on_loop(Table.to_arrow)
    refresh = blocking(Table.refresh)
    close = blocking(Table.close)
    wait_for = blocking(Table.wait_for)
