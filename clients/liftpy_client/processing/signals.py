"""SIGTERM, and SIGINT where nothing else takes it, as a request to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["stopping", "stopping_loop"]

_DEFAULTS: Final[dict[signal.Signals, Any]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}


class _Watch:
    """What one event loop does at a signal: it asks everything that processes in it to stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stops: list[Callable[[], None]] = []
        self._before: dict[signal.Signals, Any] = {}

    def add(self, stop: Callable[[], None]) -> None:
        self._stops.append(stop)
        if len(self._stops) == 1:
            for number, default in _DEFAULTS.items():
                before = signal.getsignal(number)
                if before is default:  # else the application, or asyncio.run, has a use for it
                    self._loop.add_signal_handler(number, self._tell)
                    self._before[number] = before

    def remove(self, stop: Callable[[], None]) -> None:
        self._stops.remove(stop)
        if not self._stops:
            for number, before in self._before.items():
                self._loop.remove_signal_handler(number)
                signal.signal(number, before)
            del _watches[self._loop]

    def _tell(self) -> None:
        for stop in list(self._stops):
            stop()


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM while the block runs, in the main thread and unless the application handles SIGTERM.

    `asyncio.run` turns SIGINT into a cancellation. Only without it, SIGINT calls `stop` as well.
    """
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _watches.setdefault(loop, _Watch(loop))
    watch.add(stop)
    try:
        yield
    finally:
        watch.remove(stop)


@contextmanager
def stopping_loop(stop_there: Callable[[], None]) -> Iterator[None]:
    """Call `stop_there` at SIGTERM or Ctrl-C while the main thread waits for the event loop of another thread.

    Each signal has its own effect again after the first one, so that a second Ctrl-C interrupts the wait. After a
    Ctrl-C, the block ends with `KeyboardInterrupt`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    told: list[int] = []

    def tell(number: int, _frame: Any) -> None:
        told.append(number)
        signal.signal(number, before[signal.Signals(number)])
        stop_there()

    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            before[number] = signal.signal(number, tell)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in told:
        raise KeyboardInterrupt
