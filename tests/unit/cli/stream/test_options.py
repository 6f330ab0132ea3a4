"""`liftpy stream add` and `edit` have an option for each setting of a stream, and none besides."""

from __future__ import annotations

from dataclasses import fields

import pytest
import typer.main
from typer.testing import CliRunner

from liftpy.cli.stream.commands import app
from liftpy.cli.stream.options import CREATE_ONLY, OPTIONS, parsed
from liftpy_client.errors import UsageError
from liftpy_envelope.stream_config import StreamConfig

OTHER = {"name", "as_json", "help"}


def options_of(command):
    (found,) = [each for name, each in typer.main.get_command(app).commands.items() if name == command]
    return {each.name: each for each in found.params}


def test_every_setting_is_an_option():
    assert set(OPTIONS) == {each.name for each in fields(StreamConfig)} - {"name"}
    assert options_of("add").keys() - OTHER == set(OPTIONS)
    assert options_of("edit").keys() - OTHER == set(OPTIONS) - set(CREATE_ONLY)


def test_kinds_come_from_the_configuration():
    options = options_of("add")
    shown = {name: (options[name].opts, options[name].secondary_opts, options[name].metavar) for name in options}
    assert shown["retention_age_s"] == (["--retention-age", "--max-age"], [], "SPAN")
    assert shown["message_bytes_max"] == (["--message-bytes-max", "--max-msg-size"], [], "SIZE")
    assert shown["keep_replies"] == (["--keep-replies"], ["--no-keep-replies"], None)
    assert shown["compact"] == (["--compact"], ["--no-compact"], None)


def test_an_option_has_the_name_of_its_setting():
    for name, option in options_of("add").items():
        if name not in OTHER:
            assert option.opts[0] == "--" + name.removesuffix("_s").replace("_", "-")
            assert option.opts[1:] == ([] if OPTIONS[name].nats is None else [OPTIONS[name].nats])


@pytest.mark.parametrize("option", ["--replicas", "--min-isr", "--min-dirty-ratio", "--dedupe-ids-max"])
def test_a_number_is_a_number(option):
    found = CliRunner().invoke(app, ["add", "orders", "--subject", "orders.>", option, "many"])
    assert found.exit_code == 2
    assert f"Invalid value for '{option}'" in found.stderr


def test_what_was_given_is_read_in_the_units_of_the_configuration():
    given = {"retention_age_s": "7d", "retention_bytes": "1KiB", "tier": False, "min_isr": None, "group": ""}
    assert parsed(given) == {"retention_age_s": 604_800.0, "retention_bytes": 1_024, "tier": False, "group": ""}
    with pytest.raises(UsageError, match="--segment-age: 'soon' is not a time span"):
        parsed({"segment_age_s": "soon"})
