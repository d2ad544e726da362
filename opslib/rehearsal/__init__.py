"""The rehearsal host: a practice machine in a box."""
