"""Jobs that rewrite and remove what is in the bucket: merge, compact, collect, retention."""
