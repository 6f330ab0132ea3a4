"""Rows, the columns of objects in the bucket: from record batches and back."""
