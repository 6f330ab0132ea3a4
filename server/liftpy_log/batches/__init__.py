"""Record batches that are made of parts of others."""
