"""All that crosses a wire: record batches, envelopes, headers, acks, the pull protocol, names and configurations.

Every module here is pure: bytes in, values out, no clock, no socket, no event loop.
"""
