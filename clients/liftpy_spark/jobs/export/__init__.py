"""Exports of streams to Delta tables and Parquet files by Spark."""
