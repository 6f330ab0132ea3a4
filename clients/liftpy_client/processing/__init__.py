"""The runner: calls a handler for each message of a group, with retries and dead letters."""
