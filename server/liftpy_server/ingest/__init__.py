"""From the NATS socket to the log: one batch per partition and chunk, no object per message on the way."""
