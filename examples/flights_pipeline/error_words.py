"""What Spark says of a failure, in a line: it has tracebacks of two languages in it."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # Spark brings it, without types
from pyspark.errors import PySparkException

__all__ = ["in_words"]

_OURS: Final = re.compile(r"(?:liftpy[\w.]*|delay_results\.\w*)Error: (.+)")
_REASON_MAX: Final = 600


def in_words(error: Exception) -> str:
    """Of what Spark says of a failure of ours, only what we said; of others, the first line."""
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error) or type(error).__name__
    if not isinstance(error, (Py4JJavaError, PySparkException)):
        return text
    ours = _OURS.findall(text)
    return (ours[-1] if ours else text.splitlines()[0])[:_REASON_MAX]
