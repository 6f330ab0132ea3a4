"""The sink: tasks stage or publish rows, and the driver commits them, exactly once or at least once."""
