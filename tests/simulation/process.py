"""The processes of a node: what is addressed to one reaches no later one, and waits while it stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Process"]


class Process:
    """See the module.

    Attributes:
        run: another number with every start and end.
    """

    def __init__(self) -> None:
        self.is_up = False
        self.is_paused = False
        self.run = 0
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def _begun(self) -> None:
        self.is_up = True
        self.run += 1

    def _ended(self) -> None:
        self.is_up = self.is_paused = False
        self.run += 1
        self._inbox.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        inbox, self._inbox = self._inbox, []
        for act, args in inbox:
            self.enter(self.run, act, *args)

    def entrance(self) -> Callable[..., None]:
        """For what is addressed to this process, and to no later one."""
        run = self.run
        return lambda act, *args: self.enter(run, act, *args)

    def enter(self, run: int, act: Callable[..., Any], *args: Any) -> None:
        """Run something in the process."""
        if run != self.run or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((act, args))
        else:
            self._act(act, *args)

    def _act(self, act: Callable[..., Any], *args: Any) -> None:
        act(*args)
