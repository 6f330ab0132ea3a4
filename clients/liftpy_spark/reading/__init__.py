"""Reading ranges of offsets in tasks: from the bucket, from nodes, as the columns that Spark asks for."""
