"""Who runs this, and with what: for the record."""

import getpass
import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("papermill", "ipykernel", "jupyterlab", "fabric", "paramiko")


STARTED_BY = "OPSLIB_STARTED_BY"  # variable: the task of an engine (Prefect, Airflow) that began this run, in one line


def login_name() -> str:
    """Who runs this; a container's user need not be in passwd(5)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid-{os.getuid()}"


def operator() -> str:
    """The login, who became it by sudo(8) where somebody did, and the engine's task where one began the run."""
    user, by, task = login_name(), os.environ.get("SUDO_USER", ""), os.environ.get(STARTED_BY, "")
    user = f"{user} (sudo by {by})" if by and by != user else user
    return f"{user} (by {' '.join(task.split())})" if task else user


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
