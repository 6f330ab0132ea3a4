"""`python -m liftpy`, and the `liftpy` command."""

from __future__ import annotations

from liftpy.cli.app import app

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
