"""Streams whose values are objects of the application: codecs, and a stream that uses one."""
