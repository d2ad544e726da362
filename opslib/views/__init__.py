"""Domain values as Jupyter shows them, live and as what stays in the file."""
