"""Reads of what is in the bucket and no longer on this node's disk: fetched as record batches, cached, served alike."""
