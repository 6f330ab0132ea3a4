"""`python -m liftpy`, and the `liftpy` command."""

from __future__ import annotations

from liftpy.cli.app import app
from liftpy.cli.late_jetstream import load_jetstream_late
from liftpy_envelope.no_pandas import keep_pandas_out

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    keep_pandas_out()
    load_jetstream_late()
    app()


if __name__ == "__main__":
    main()
