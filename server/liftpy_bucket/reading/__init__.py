"""The history of a partition in the bucket, read by manifests."""
