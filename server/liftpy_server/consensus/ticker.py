"""The thread that a voter runs on, and what becomes of the node when it fails."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.consensus.raft import Raft

__all__ = ["EXIT_CODE", "Ticker", "exit_process"]

logger = logging.getLogger(__name__)

EXIT_CODE: Final = 70


def exit_process(error: BaseException) -> None:
    """End the process at once, without any clean-up that could write to a journal that may be broken."""
    try:
        where = None if isinstance(error, LiftError) else error  # the former say all there is to know
        text = "the metadata can not go on, and the node stops; start it again when this is put right: %s"
        logger.critical(text, error, exc_info=where)
    finally:
        os._exit(EXIT_CODE)  # also when logging fails, for instance because the disk is full


class Ticker:
    """Runs the ticks of one voter until it is stopped or one fails. After a failure there is never another tick.

    Args:
        raft: The voter; closed when the thread ends.
        on_fatal: Called on the thread with what a tick raised.
    """

    def __init__(self, raft: Raft, on_fatal: Callable[[BaseException], None]) -> None:
        self._raft = raft
        self._on_fatal = on_fatal
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="liftpy-raft", daemon=True)

    def start(self) -> None:
        """Start to tick."""
        self._thread.start()

    def stop(self) -> None:
        """End after the tick that runs, and wait for it."""
        self._is_stopping = True
        self._raft.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._raft.tick(self._raft.wait_s)
        except BaseException as error:  # noqa: BLE001 - whatever it is, this voter's word is worth nothing any more
            self._on_fatal(error)
        finally:
            self._raft.close()
