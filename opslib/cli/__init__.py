"""The verbs for a shell."""
