"""Puts the floors together for notebooks and the command line."""
