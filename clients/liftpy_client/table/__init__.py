"""Live tables: the last value of every key of a stream."""
