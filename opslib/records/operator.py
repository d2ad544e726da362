"""Who runs this, and with what: for the record."""

import getpass
import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("papermill", "ipykernel", "jupyterlab", "fabric", "paramiko")


def operator() -> str:
    """The login, and who became it by sudo(8), where somebody did."""
    user, by = getpass.getuser(), os.environ.get("SUDO_USER", "")
    return f"{user} (sudo by {by})" if by and by != user else user


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """The versions of Python, of the system, and of the packages that a run rests on."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
