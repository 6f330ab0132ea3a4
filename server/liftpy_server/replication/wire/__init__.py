"""The follower's side of the follow protocol. The leader's side is in `liftpy_server.pull`."""
