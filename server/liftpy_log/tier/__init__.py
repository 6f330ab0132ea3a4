"""The log in the bucket: Parquet objects, manifests that name them, and what keeps both in order."""
