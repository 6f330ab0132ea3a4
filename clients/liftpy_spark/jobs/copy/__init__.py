"""Copies of histories from one bucket to another by Spark."""
