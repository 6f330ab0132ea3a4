"""Jobs of the worker process, a module each: everything that a node has done to a bucket."""
