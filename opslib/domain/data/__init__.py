"""Tables of the domain."""
