"""What can be asked of a host: an argument vector per question, and a pure reader of its answer."""
