"""Where the expected digests come from when an operator names them: a file here, or the hub at the pinned commit."""

import json
import os
import re
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from opslib.domain.digests import Expectation, parse_expectation
from opslib.domain.host import Host
from opslib.errors import BadParameter, CouldNotFindOut, reason_of
from opslib.workflow.verify import verify_checkpoint

HUB = "hub:"
TIMEOUT_S = 30.0
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_COMMIT = re.compile(r"[0-9a-f]{40}")


def load_expectation(given: str, host: Host, path: str) -> Expectation:
    """What `--expect` means: a listing's file, or `hub:REPO[@COMMIT]`.

    Without a commit that of the download on the host counts, never the branch's newest. Raises BadParameter for a
    file that can't be read, CouldNotFindOut where the hub doesn't answer or no commit is known.
    """
    if not given.startswith(HUB):
        try:
            return parse_expectation(Path(given).read_text("utf-8"), Path(given).name)
        except (OSError, UnicodeDecodeError) as error:
            raise BadParameter(f"cannot read {given}: {reason_of(error)}") from error
    repository, _, commit = given.removeprefix(HUB).partition("@")
    commit = commit or verify_checkpoint(host, path).commit or ""
    if not _COMMIT.fullmatch(commit):
        raise CouldNotFindOut(
            f"no commit is recorded for {path}", host=host.settings.alias, hint=f"--expect {HUB}{repository}@COMMIT"
        )
    return _from_hub(repository, commit)


def _from_hub(repository: str, commit: str) -> Expectation:
    """The hub's tree of a commit, page after page (https://huggingface.co/docs/hub/api)."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url: str | None = f"{endpoint}/api/models/{quote(repository)}/tree/{commit}?recursive=true"
    rows: list[object] = []
    token = os.environ.get("HF_TOKEN")
    while url:
        if not url.startswith((endpoint + "/", "https://")):
            raise CouldNotFindOut(f"the hub leads elsewhere: {url[:200]}")
        request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                rows += json.loads(answer.read())
                following = _NEXT.search(answer.headers.get("Link") or "")
        except (URLError, OSError, ValueError, RecursionError) as error:
            raise CouldNotFindOut(
                f"the hub gave no listing of {repository} at {commit[:12]}: {reason_of(error)}",
                hint="bring the listing as a file: --expect listing.json",
            ) from error
        url = following[1] if following else None
    expectation = parse_expectation(json.dumps(rows), f"hub {repository}")
    return expectation.model_copy(update={"commit": commit})
