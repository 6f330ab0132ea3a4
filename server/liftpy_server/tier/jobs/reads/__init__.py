"""Jobs that read history for consumers."""
