"""From settings to a host: over SSH or on this machine, recorded when somebody keeps a transcript."""

import os
from pathlib import Path

from opslib.domain.host import Host, HostSettings

LOCAL = "local"  # the address that means this machine


def open_host(settings: HostSettings) -> Host:
    """The host of these settings; it connects on first use. $OPSLIB_TRANSCRIPT names a file that keeps its vectors."""
    host: Host
    # Both imports wait until they are needed: fabric takes a while to import.
    if settings.address == LOCAL:
        from opslib.hosts.local import LocalHost  # noqa: PLC0415

        host = LocalHost(settings)
    else:
        from opslib.hosts.ssh import SshHost  # noqa: PLC0415

        host = SshHost(settings)
    transcript = os.environ.get("OPSLIB_TRANSCRIPT")
    if not transcript:
        return host
    from opslib.hosts.transcript import RecordingHost  # noqa: PLC0415

    return RecordingHost(host, Path(transcript))
