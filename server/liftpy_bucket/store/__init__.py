"""Object stores: what is asked of one, S3, one in memory, conditional writes, and the probe of a store."""
