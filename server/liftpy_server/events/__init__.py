"""Events: what happens to the cluster, stored in the stream `__activity`."""
