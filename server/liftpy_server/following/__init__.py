"""A follower's side of replication: links to the nodes that lead the partitions it has replicas of."""
