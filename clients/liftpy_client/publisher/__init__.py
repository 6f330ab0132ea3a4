"""Publishing: batches, retries, and acks."""
