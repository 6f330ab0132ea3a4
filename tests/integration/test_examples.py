"""The programs in examples, each run by itself against a real node: they print what stands here, and end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_S_MAX = 60

PRINTED = {
    "publish_and_consume": """\
the first one is on disk at offset 0
997 b'997' b'order 997'
998 b'998' b'order 998'
999 b'999' b'order 999'
""",
    "group_worker": "100 jobs done; the group goes on at 100\n",
    "price_table": """\
EURUSD 1.088
{b'EURUSD': 1.088, b'GBPUSD': 1.265}
EURUSD 1.0901
EURUSD: 1.088 -> 1.0901 at offset 3
GBPUSD: 1.265 -> None at offset 4
1 row for Arrow
""",
    "notebook": """\
0 example.notes.a b'first'
[{'offset': 8, 'value': b'note 7'}, {'offset': 9, 'value': b'note 8'}, {'offset': 10, 'value': b'note 9'}]
""",
    "batches": """\
100000 readings, 4999950000 in all
[{'offset': 10, 'value': b'10'}, {'offset': 11, 'value': b'11'}, {'offset': 12, 'value': b'12'}]
""",
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == PRINTED.keys()


@pytest.mark.parametrize("name", PRINTED)
async def test_example(name, shared_nats, shared_node, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("NATS_", "LIFTPY_"))}
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env=environment | {"NATS_URL": shared_nats.url, "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == PRINTED[name]
