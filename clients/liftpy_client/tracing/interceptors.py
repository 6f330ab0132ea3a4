"""What an interceptor is, and all interceptors of a connection as one."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from liftpy_client.errors import UsageError
from liftpy_envelope.headers import with_all_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Interceptor", "Interceptors"]


class Interceptor:
    """Stands around what a connection does. Override what you need.

    Each method returns a context manager, which is entered before and left after. It is left with the error, if there
    is one.
    """

    def publishing(
        self, subject: str, headers: Mapping[str, str | Sequence[str]] | None
    ) -> AbstractContextManager[Mapping[str, str | Sequence[str]] | None]:
        """Around the publish of a message; gives the headers to send."""
        del subject
        return nullcontext(headers)

    def processing(self, group: str, item: Any) -> AbstractContextManager[Any]:
        """Around one call of a handler by `process`. `item` is the message or record batch."""
        del group, item
        return nullcontext()

    def committing(self, group: str) -> AbstractContextManager[Any]:
        """Around a commit of a group's offsets."""
        del group
        return nullcontext()


class Interceptors(Interceptor):
    """Several interceptors, the first of them outermost. False if there are none.

    Raises:
        UsageError: one of them is no interceptor.
    """

    def __init__(self, several: Sequence[Interceptor] = ()) -> None:
        wrong = [each for each in several if not isinstance(each, Interceptor)]
        if wrong:
            raise UsageError(f"interceptors: {wrong[0]!r:.60} is not a liftpy.Interceptor")
        self._several = tuple(several)

    def __bool__(self) -> bool:
        return bool(self._several)

    @contextmanager
    def publishing(
        self, subject: str, headers: Mapping[str, str | Sequence[str]] | None
    ) -> Iterator[Mapping[str, str | Sequence[str]] | None]:
        """Around the publish of a message; gives the headers to send."""
        with ExitStack() as stack:
            if self._several and headers is not None:
                headers = with_all_values(headers)
            for each in self._several:
                headers = stack.enter_context(each.publishing(subject, headers))
            yield headers

    @contextmanager
    def processing(self, group: str, item: Any) -> Iterator[None]:
        """Around one call of a handler."""
        with ExitStack() as stack:
            for each in self._several:
                stack.enter_context(each.processing(group, item))
            yield

    @contextmanager
    def committing(self, group: str) -> Iterator[None]:
        """Around a commit."""
        with ExitStack() as stack:
            for each in self._several:
                stack.enter_context(each.committing(group))
            yield
