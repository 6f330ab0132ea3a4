"""What a task that reads the bucket alone imports: a worker that did not finish its task ends with it, and the next one
imports everything again. Each of these takes longer than reading the first rows.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

from support.tier_history import PATH, TierHistory
from support.tier_rows import Record

READ = """
import pickle, sys
from liftpy_spark.reading import ranges as range_reading
from liftpy_spark.source.batch_reader import LiftpyReader
from liftpy_spark.connections import OpenBucket
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.reading.planning import Range
from liftpy_spark.reading.schema import source_schema
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.reading.cache import ReadingCache

store = MemoryStore()
for key, body in pickle.load(sys.stdin.buffer).items():
    store.create(key, body, "n")
counting = CountingStore(store)
range_reading.open_bucket = lambda *_: OpenBucket(counting, ReadingCache(counting), "s3://memory")
options = SourceOptions.read({"servers": "nats://nowhere", "subscribe": "orders"}, streaming=False)
ranges = [Range("orders", sys.argv[1], 0, 0, 9)]
batches = list(range_reading.read_ranges(ranges, options, source_schema(False)))
loaded = {"pandas", "nats", "liftpy_client", "boto3"} & set(sys.modules)
print(sum(batch.num_rows for batch in batches), batches[0].column("topic")[0], sorted(loaded))
"""


def test_a_task_that_reads_the_bucket_alone_imports_neither_nats_nor_pandas():
    history = TierHistory()
    history.append([Record(at, at * 1_000, b"a", key=b"k", value=b"v") for at in range(9)])
    objects = pickle.dumps({entry.key: history.store.get(entry.key).body for entry in history.store.list("")})
    command = [sys.executable, "-c", READ, PATH.uuid]
    done = subprocess.run(command, input=objects, check=True, capture_output=True)
    assert done.stdout.decode().strip() == "9 orders []"
