"""The only I/O to machines."""
