"""Key compaction of a bucket by Spark."""
