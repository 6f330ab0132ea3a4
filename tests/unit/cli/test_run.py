"""How commands fail."""

from __future__ import annotations

import pytest
import typer

from liftpy.cli.run import fail
from liftpy_client.errors import OffsetLostError, TableTooLargeError


@pytest.mark.parametrize(
    ("error", "python", "cli"),
    [
        (OffsetLostError("s", 0, 1, 2, 3), "on_lost=", "--on-lost earliest, latest or new"),
        (TableTooLargeError("s", 10, 2), "bytes_max, or", "Lift.table"),
    ],
)
def test_advice_is_given_in_the_words_of_the_command_line(error, python, cli, capsys):
    assert python in str(error)  # else this test shows nothing
    with pytest.raises(typer.Exit):
        fail(error, as_json=True)
    said = capsys.readouterr().err
    assert cli in said
    assert python not in said
