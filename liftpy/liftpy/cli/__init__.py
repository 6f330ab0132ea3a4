"""The `liftpy` command: it parses, builds settings, calls one function and shows what came of it."""
