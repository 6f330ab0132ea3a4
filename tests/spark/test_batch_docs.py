"""What docs/spark.md shows works as it stands there, and its table has every option."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from liftpy_spark.options import SOURCE_OPTIONS
from liftpy_spark.schema import source_schema

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_five_minutes(spark, system, monkeypatch, capsys):
    monkeypatch.setenv("PYSPARK_PYTHON", "put back afterwards")
    system.lift.create_stream("orders", subject="orders.>")
    try:
        system.publish("orders.eu", value=pa.array([b"two pizzas"]))
        code = BLOCK.findall(PAGE)[0].replace("nats://127.0.0.1:4222", system.url)
        exec(code.replace(".load()", ".option('cold', 'false').load()"), {})
        assert "two pizzas" in capsys.readouterr().out
        assert spark.version
    finally:
        system.lift.delete_stream("orders")


def test_every_option_and_column_is_there():
    documented = re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)
    assert set(documented) == {*SOURCE_OPTIONS, *source_schema(include_headers=True).fieldNames()}
