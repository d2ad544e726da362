"""From settings to a host: over SSH, on this machine, or out of a recording; recorded when somebody keeps one."""

import os
from pathlib import Path

from opslib.domain.host import Host, HostSettings

LOCAL = "local"  # the address that means this machine
REPLAY = "replay:"  # the address `replay:PATH` means a recording


def open_host(settings: HostSettings) -> Host:
    """The host of these settings; it connects on first use.

    $OPSLIB_TRANSCRIPT names a file that keeps what it is asked, $OPSLIB_RECORDING one that keeps the answers too.
    """
    host = _adapter(settings)
    transcript, recording = os.environ.get("OPSLIB_TRANSCRIPT"), os.environ.get("OPSLIB_RECORDING")
    if not transcript and not recording:
        return host
    from opslib.hosts.recording import RecordingHost  # noqa: PLC0415

    if recording:
        host = RecordingHost(host, Path(recording), has_results=True)
    return RecordingHost(host, Path(transcript)) if transcript else host


def _adapter(settings: HostSettings) -> Host:
    # The imports wait until they are needed: fabric takes a while to import.
    if settings.address == LOCAL:
        from opslib.hosts.local import LocalHost  # noqa: PLC0415

        return LocalHost(settings)
    if settings.address.startswith(REPLAY):
        from opslib.hosts.replay import ReplayHost  # noqa: PLC0415

        return ReplayHost(Path(settings.address.removeprefix(REPLAY)).expanduser(), alias=settings.alias)
    from opslib.hosts.ssh import SshHost  # noqa: PLC0415

    return SshHost(settings)
