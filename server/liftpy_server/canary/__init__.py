"""A canary: messages that are published and read back every way, and compared one to one."""
