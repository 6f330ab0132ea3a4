"""Variables of the environment that look like settings of liftpy, and set nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy.cli.run import tell_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["tell_misspelt"]


def tell_misspelt(environment: Mapping[str, str]) -> None:
    """Name the misspelt `LIFTPY_*` variables, with those that may be meant."""
    try:
        from liftpy_server.settings.config import misspelt_variables
    except ImportError:  # without the packages of a node nobody knows its settings
        return
    tell_warnings(
        f"the variable {name} sets nothing; did you mean {near}?"
        for name, near in misspelt_variables(environment).items()
    )
