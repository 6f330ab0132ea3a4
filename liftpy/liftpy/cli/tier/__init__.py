"""Commands about the bucket, and the one that restores a cluster from it."""
