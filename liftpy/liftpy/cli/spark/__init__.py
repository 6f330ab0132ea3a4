"""Commands that work on a bucket with Spark."""
