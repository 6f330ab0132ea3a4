"""A request to a coordinator, from its arrival until it is answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from liftpy_envelope.group_offsets import CommitResult
from liftpy_envelope.groups import GroupError
from liftpy_server.groups.core.coordinator import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.group_offsets import CommitRefusal
    from liftpy_server.groups.core.inputs import Input

__all__ = ["PendingRequest"]


class PendingRequest:
    """One request. Whoever waits for `answered` may give up at any time.

    Args:
        group: Group that the request is of.
        given: The coordinator's input; None for a question about what is committed, which is no step.
        client: The address of who asks; "" for the node itself.

    Attributes:
        answered: Future that gets the answer.
        may_wait: A heartbeat that brings no news may wait for some.
        refusals: Refusals of a commit, what the coordinator does not see because it is refused already.
    """

    __slots__ = ("_answer_now", "answered", "client", "given", "group", "may_wait", "refusals")

    def __init__(self, group: str, given: Input | None, client: str = "") -> None:
        self.group = group
        self.given = given
        self.client = client
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.may_wait = True
        self.refusals: tuple[CommitRefusal, ...] = ()
        self._answer_now: Callable[[], None] | None = None

    def reply(self, answer: Any) -> None:
        """Answer, unless nobody waits any more."""
        if self.answered.done():
            return
        if self.refusals and isinstance(answer, CommitResult) and answer.error is GroupError.NONE:
            answer = answer._replace(refusals=(*self.refusals, *answer.refusals))
        self.answered.set_result(answer)

    def refuse(self, error: GroupError, message: str) -> None:
        """Answer with an error that fits the request."""
        self.reply(refused(self.given, error, message))

    def wait(self, answer_now: Callable[[], None]) -> None:
        """It waits for news; `answer_now` answers it as it is."""
        self._answer_now = answer_now

    def hurry(self) -> None:
        """Whoever asked wants something else: answer as soon as that is possible, with news or without."""
        self.may_wait = False
        answer_now, self._answer_now = self._answer_now, None
        if answer_now is not None:
            answer_now()
