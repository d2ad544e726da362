"""How long it takes until a practice host is up, and until four hosts, good and bad, stand in one survey.

The four: a practice host, a real Debian host (another practice host where none can be had here), a closed port, and a
host whose key has changed.
"""

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opslib.app.survey import survey_hosts
from opslib.domain.host import HostSettings
from opslib.hosts.inventory import Inventory
from opslib.rehearsal.server import start_rehearsal
from tests.loopback_sshd import free_port, keygen
from tests.rig.debian import RigUnavailable, debian_host

N_RUNS = 5
MAX_START_S, MAX_SURVEY_S = 2.0, 3.0


@contextmanager
def second_host() -> Iterator[tuple[str, HostSettings]]:
    """A real Debian, or another practice host."""
    try:
        with debian_host("opslib-bench") as debian:
            yield "real Debian", debian.ops_settings
    except RigUnavailable:
        with start_rehearsal("healthy") as other:
            yield "rehearsal", other.settings


def survey_s(inventory: Inventory) -> float:
    """Seconds for one survey of the whole inventory."""
    began = time.monotonic()
    with patch("opslib.app.binding.load_inventory", return_value=inventory):
        surveys = survey_hosts(tuple(inventory.hosts))
    taken = time.monotonic() - began
    assert [survey.is_reached for survey in surveys] == [True, True, False, False]
    return taken


def measure(directory: Path) -> dict[str, object]:
    """Both figures, medians of N_RUNS."""
    starts = []
    for _ in range(N_RUNS):
        began = time.monotonic()
        with start_rehearsal():
            starts.append(time.monotonic() - began)
    with start_rehearsal() as practice, second_host() as (kind, second):
        keygen(directory / "other")
        public = (directory / "other.pub").read_text()
        (directory / "changed").write_text(f"[127.0.0.1]:{practice.settings.port} {public}")
        hosts = {
            "practice": practice.settings,
            "second": second,
            "closed": practice.settings.model_copy(update={"port": free_port()}),
            "changed": practice.settings.model_copy(update={"known_hosts_file": str(directory / "changed")}),
        }
        named = {alias: settings.model_copy(update={"alias": alias}) for alias, settings in hosts.items()}
        times = [survey_s(Inventory(hosts=named)) for _ in range(N_RUNS)]
    return {
        "second_host": kind,
        "rehearsal_start_s": round(statistics.median(starts), 2),
        "survey_of_four_s": round(statistics.median(times), 2),
    }


def main() -> int:
    """Print the result as JSON; 1 where a bound is passed."""
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory))
    result = {
        "benchmark": "survey",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "n": N_RUNS,
        **figures,
        "max_rehearsal_start_s": MAX_START_S,
        "max_survey_s": MAX_SURVEY_S,
    }
    print(json.dumps(result, indent=1))
    is_good = figures["rehearsal_start_s"] <= MAX_START_S and figures["survey_of_four_s"] <= MAX_SURVEY_S  # type: ignore[operator]
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
