"""A stream as one DataFrame whose history the JVM reads from the bucket itself."""
