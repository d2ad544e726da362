"""The only I/O to `runs/`."""
