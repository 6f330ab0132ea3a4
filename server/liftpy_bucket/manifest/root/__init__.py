"""The root of a partition, and the snapshots below it."""
