"""Stream objects and stream-set objects: records as Parquet, the pointers to them, and the sums over them."""
