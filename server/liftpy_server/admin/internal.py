"""What users may do with the system's own streams, whose names begin with `__`: look, and tune what loses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.events import EVENTS_STREAM
from liftpy_envelope.stream_config import INTERNAL_PREFIX
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from liftpy_server.admin.requests import UpdateRequest

__all__ = ["check_changed", "check_created", "check_owned"]

_TUNABLE: Final = {
    "compression",
    "delete_retention_s",
    "local_retention_age_s",
    "local_retention_bytes",
    "min_compaction_lag_s",
    "min_dirty_ratio",
    "min_isr",
    "segment_age_s",
    "segment_bytes",
}
_TUNABLE_EVENTS: Final = {"retention_age_s", "retention_bytes", "retention_messages"}


def check_created(body: dict[str, Any]) -> None:
    """Refuse the creation of a stream under a name of the system.

    Raises:
        AdminError: it has one.
    """
    name = body.get("name")
    if isinstance(name, str) and name.startswith(INTERNAL_PREFIX):
        text = f"name: {name!r:.80} is for liftpy's own streams, as all names that begin with {INTERNAL_PREFIX!r} are"
        raise AdminError(ErrorCode.INVALID_CONFIG, text)


def check_owned(name: str, what: str) -> str:
    """`name`, when the stream is the user's.

    Raises:
        AdminError: it is one of the system.
    """
    if name.startswith(INTERNAL_PREFIX):
        raise AdminError(ErrorCode.INVALID_REQUEST, f"stream {name!r:.80} is liftpy's own, and can not {what}")
    return name


def check_changed(request: UpdateRequest) -> None:
    """Refuse to change of a stream of the system what its data depend on.

    Raises:
        AdminError: that is asked for.
    """
    tunable = _TUNABLE | _TUNABLE_EVENTS if request.name == EVENTS_STREAM else _TUNABLE
    fixed = sorted(request.changes.keys() - tunable)
    if request.name.startswith(INTERNAL_PREFIX) and fixed:
        text = f"{fixed[0]}: of liftpy's own streams only these can be changed: {', '.join(sorted(tunable))}"
        raise AdminError(ErrorCode.INVALID_CONFIG, text)
