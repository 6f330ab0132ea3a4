"""Interceptors: what stands around publishes, handlers and commits. One of them traces with OpenTelemetry."""
