"""Rows that the sink of Spark stages: how they are laid out, and how they are read. Who stages them: `liftpy_spark`."""
