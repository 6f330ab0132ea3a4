"""Names of streams, nodes, consumers and groups."""

from __future__ import annotations

import re
from typing import Final

from liftpy_envelope.errors import NameInvalidError
from liftpy_envelope.limits import NAME_LENGTH_MAX

__all__ = ["check_name"]

_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_LENGTH_MAX}}}")


def check_name(name: object, what: str = "stream") -> str:
    """`name`, when it is one.

    Raises:
        NameInvalidError: it is not a string that matches `[A-Za-z0-9_-]{1,128}`.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    shown = f"{name!r:.80}"
    raise NameInvalidError(
        f"{what} name {shown} is not allowed: use 1 to {NAME_LENGTH_MAX} letters, digits, '_' or '-'"
    )
