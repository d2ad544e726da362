"""The Debian that the real host starts from: made once with mmdebstrap, never booted itself."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.rig.cache import RigUnavailable, build_once

SUITE = "bookworm"  # its systemd is the newest that still boots where control groups are version 1
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "dbus-user-session",  # with libpam-systemd: a login has a user manager, so `systemd-run --user` works
    "libpam-systemd",
    "openssh-server",
    "python3",
    "sudo",
    "iproute2",
    "procps",
    "libnuma1",  # without it vLLM's C extension does not load
    "ca-certificates",
)
_SETUP = """\
set -eu
useradd --create-home --shell /bin/bash --groups adm,sudo ops
useradd --create-home --shell /bin/bash nosudo
echo 'ops ALL=(ALL:ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops
chmod 0440 /etc/sudoers.d/ops
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id /etc/resolv.conf
printf 'HostKey /etc/ssh/ssh_host_ed25519_key\\nUseDNS no\\n' > /etc/ssh/sshd_config.d/rig.conf
echo LANG=C.UTF-8 > /etc/default/locale
mkdir -p /var/log/journal /srv/models
for unit in console-getty getty-static systemd-networkd systemd-resolved systemd-timesyncd; do
    ln -sf /dev/null /etc/systemd/system/$unit.service
done
for timer in apt-daily apt-daily-upgrade dpkg-db-backup e2scrub_all fstrim; do
    ln -sf /dev/null /etc/systemd/system/$timer.timer
done
"""
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_PROGRAMS = ("mmdebstrap", "systemd-nspawn", "ip", "mount", "ssh", "ssh-keygen")


def require_machine() -> None:
    """Raise RigUnavailable, with the reason, where no real host can be made."""
    if os.geteuid() != 0:
        raise RigUnavailable("the real Debian host needs root")
    missing = [program for program in _PROGRAMS if not shutil.which(program)]
    if missing:
        raise RigUnavailable(f"the real Debian host needs {', '.join(missing)} (make system-deps)")


def base_image() -> Path:
    """The root directory of a minimal Debian with sshd and three logins: root, ops (sudo) and nosudo."""
    require_machine()
    recipe = "\n".join((*PACKAGES, *_LEFT_OUT, _SETUP))
    return build_once(f"debian-{SUITE}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}", _build)


def _build(partial: Path) -> None:
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--skip=output/dev",  # systemd-nspawn makes its own
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        '--customize-hook=chroot "$1" sh -c "$RIG_SETUP"',
        SUITE,
        str(partial),
        f"deb {debian_mirror()} {SUITE} main",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "RIG_SETUP": _SETUP})
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RigUnavailable(f"mmdebstrap failed: {last[0]}")


def debian_mirror() -> str:
    """Where this machine's own apt fetches Debian from.

    Raises RigUnavailable where apt knows no Debian mirror.
    """
    wanted = "$(RELEASE) $(COMPONENT) $(REPO_URI)"  # without the option only what `apt-get update` has fetched is told
    asked = ["apt-get", "indextargets", "--no-release-info", "--format", wanted, "Identifier: Packages"]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    found = [line.split() for line in done.stdout.splitlines()]
    mirrors = [(words[2], words[0]) for words in found if len(words) == 3 and words[1] == "main"]
    if not mirrors:
        raise RigUnavailable("this machine's apt knows no Debian mirror to make the host from")
    mirrors.sort(key=lambda mirror: (not mirror[0].rstrip("/").endswith("/debian"), mirror[1] != SUITE))
    return mirrors[0][0]
