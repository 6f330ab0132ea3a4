"""Work on all that a bucket has of streams, by Spark: no node and no NATS are needed for it.

The driver plans and commits, tasks read and write. A job may be killed at any step and repeated.
"""
