"""Garbage collection of a bucket by Spark."""
