"""When what goes to the bucket, and what of it may go from the disk. Pure."""
