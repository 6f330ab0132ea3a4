"""The client for scripts and notebooks, without asyncio."""
