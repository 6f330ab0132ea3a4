"""What makes records durable: group commit, the write-ahead log, and how far a log has come."""
