"""`opslib verify`: is every byte that the model needs there and right?"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from opslib.app.binding import check_alias, open_bound_host
from opslib.app.expecting import load_expectation
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.cli.story import badge_text
from opslib.cli.verify_progress import told
from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.checkpoint_kinds import LEVELS
from opslib.domain.digests import render_manifest
from opslib.domain.host import Host, HostSettings
from opslib.errors import UnknownName
from opslib.hosts.open import LOCAL, open_host
from opslib.workflow.verify import verify_checkpoint

_FIELDS = ("state", "layout", "level", "n_files", "total_bytes", "checked_bytes", "duration_s", "hasher")
_FINDING = ("file", "level", "kind", "state", "expected", "found", "effect", "repair")


@click.command("verify")
@click.argument("host")
@click.argument("path")
@click.option("--level", type=click.Choice(LEVELS), default="sample", show_default=True, help="How deep.")
@click.option("--expect", metavar="LISTING|hub:REPO[@COMMIT]", help="What the files should be, as a hub lists it.")
@click.option("--no-receipts", is_flag=True, help="Hash again what was hashed before and hasn't changed.")
@click.option("--user", help="Whose read access counts: the unit's user [the login].")
@click.option("--save-manifest", type=click.Path(dir_okay=False, path_type=Path), help="Keep the digests here.")
@json_option
def verify_command(
    host: str,
    path: str,
    *,
    level: str,
    expect: str | None,
    no_receipts: bool,
    user: str | None,
    save_manifest: Path | None,
    as_json: bool,
) -> int:
    """Verify the checkpoint at PATH on HOST ("local" for this machine); a name is looked up in its models_dir.

    extents reads headers only; sample a part of the bytes, full-scan all of them for zeros and NaN; digest hashes every
    file against what is known of it. Changes nothing but the receipts in the operator's state folder on the host.
    Exit code 0: right, as far as the level looks; 1: warnings; 2: damaged or missing; 3: not found out; 4: refused.
    """
    if save_manifest and level != "digest":
        raise click.UsageError("--save-manifest needs --level digest")
    opened = _open(host)
    try:
        given = path if path.startswith("/") or host != LOCAL else str(Path(path).absolute())
        expectation = load_expectation(expect, opened, given) if expect else None
        with told() as on_progress:
            report = verify_checkpoint(
                opened,
                given,
                level=level,
                expect=expectation,
                is_receipt_used=not no_receipts,
                user=user,
                on_progress=on_progress,
            )
    finally:
        opened.close()
    if save_manifest:
        save_manifest.write_text(render_manifest(report.sha256, dict(report.shards), commit=report.commit), "utf-8")
    if as_json:
        show(json.dumps(document(report), ensure_ascii=False))
    else:
        show("\n".join(_lines(host, report)))
    return report.state.exit_code


def document(report: CheckpointReport) -> dict[str, Any]:
    """The report as `--json` prints it."""
    whole = report.model_dump(mode="json")
    return {
        **{name: whole[name] for name in _FIELDS},
        "findings": [{name: finding[name] for name in _FINDING} for finding in whole["findings"]],
        "unverifiable": whole["unverifiable"],
        "parameters_by_dtype": whole["parameters_by_dtype"],
    }


def _open(alias: str) -> Host:
    try:
        check_alias(alias)
    except UnknownName:
        if alias != LOCAL:
            raise
        return open_host(HostSettings(alias=LOCAL, address=LOCAL, python=sys.executable))
    return open_bound_host(alias)


def _lines(host: str, report: CheckpointReport) -> Iterator[str]:
    """The verdict, each finding with what it does and what mends it, and what is worth knowing."""
    yield f"{badge_text(report.state.value)}  {host}:{_plain(report.path)}: {_plain(report.summary)}"
    for finding in report.findings:
        yield f"  {badge_text(finding.state.value)}  {finding.kind}  {_plain(finding.file)}: {_plain(finding.detail)}"
        yield f"      effect  {finding.effect}"
        yield f"      repair  {_plain(finding.repair)}"
    if report.unverifiable:
        shown = ", ".join(map(_plain, report.unverifiable[:5]))
        more = f" and {len(report.unverifiable) - 5} more" if len(report.unverifiable) > 5 else ""
        yield f"  not verifiable (no known digest): {shown}{more}"
    yield from (f"  {_plain(note)}" for note in report.notes)
    checked = f"{report.checked_bytes / 1e9:.2f} GB checked in {report.duration_s:.1f} s"
    yield f"  {report.layout}, level {report.level}, {report.n_files} files, {checked}"


def _plain(text: str) -> str:
    """A text without what a terminal would obey; a file's name may hold anything."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
