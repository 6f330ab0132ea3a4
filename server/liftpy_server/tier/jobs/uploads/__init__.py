"""Jobs that bring records to the bucket, and what a new leader does first: claim, confirm, adopt."""
