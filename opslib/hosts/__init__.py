"""The only way to machines: over SSH, on this machine, and the inventory that names them."""

from opslib.hosts.open import open_host

__all__ = ["open_host"]
