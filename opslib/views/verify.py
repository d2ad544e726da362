"""What a verification shows: shards by state as a picture and as a table, what is proven, and what more would cost."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.checkpoint_notes import shown_size
from opslib.domain.digests import HashingSpeed
from opslib.domain.states import State
from opslib.views.pictures import as_png, as_svg, baseline_only, new_figure
from opslib.views.shown import Shown
from opslib.views.tables import table, text_table
from opslib.views.theme import STATE_COLOURS, STATE_SYMBOLS, headline, note, state_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bar = tuple[str, int, State]  # file, bytes, state
SHARD_COLUMNS = ("state", "weight files", "size", "which")
COST_COLUMNS = ("level", "reads", "proves", "takes about")
GB, MIB = 10**9, 2**20
_N_NAMED = 3
_SEVERITY = (State.CRITICAL, State.UNKNOWN, State.WARNING, State.OK)


def shard_bars(report: CheckpointReport) -> list[Bar]:
    """Each weight file with its size and the worst finding about it; missing ones have no size."""
    worst = {finding.file: State.OK for finding in report.findings}
    for file in worst:
        worst[file] = report.state_of(file)
    bars = [(file, size, worst.get(file, State.OK)) for file, size in report.shards]
    return sorted([*bars, *((file, 0, State.CRITICAL) for file in report.missing_shards)])


def shard_rows(bars: Sequence[Bar]) -> list[tuple[object, ...]]:
    """The bars by state, the worst first: how many, how large, and which."""
    rows: list[tuple[object, ...]] = []
    for state in _SEVERITY:
        those = [bar for bar in bars if bar[2] is state]
        if those:
            names = ", ".join(bar[0] for bar in those[:_N_NAMED])
            more = f" and {len(those) - _N_NAMED} more" if len(those) > _N_NAMED else ""
            rows.append((state, len(those), shown_size(sum(bar[1] for bar in those)), names + more))
    return rows


def shards_shown(host: str, report: CheckpointReport) -> Shown:
    """The weight files by state: sentence, picture, table."""
    bars = shard_bars(report)
    rows = shard_rows(bars)
    n_bad = sum(bar[2] is not State.OK for bar in bars)
    summary = f"{len(bars)} weight files, {f'{n_bad} of them with a finding' if n_bad else 'none with a finding'}"
    state = max((bar[2] for bar in bars), key=lambda one: -_SEVERITY.index(one), default=State.OK)
    text = [f"{state_text(state)}  {host}: {summary}", "", text_table(rows, SHARD_COLUMNS)]
    if not bars:
        return Shown(headline(state, summary, host=host), text[0])
    svg = as_svg(partial(_drawn, bars)).replace("<svg ", '<svg role="img" style="max-width:100%" ', 1)
    html = (
        f"{headline(state, summary, host=host)}{table(rows, SHARD_COLUMNS)}"
        f'<figure style="margin:8px 0" aria-label="{summary}">{svg}</figure>'
    )
    return Shown(html, "\n".join(text), png=as_png(partial(_drawn, bars)))


def proof_shown(host: str, report: CheckpointReport) -> Shown:
    """What of the bytes is proven at this level, and what is not."""
    state, summary = proof_of(report)
    html = [headline(state, summary, host=host), *(note(line) for line in report.notes)]
    text = [f"{state_text(state)}  {host}: {summary}", *report.notes]
    if report.unverifiable:
        line = f"No known digest: {', '.join(report.unverifiable[:10])}"
        html.append(note(line))
        text.append(line)
    return Shown("".join(html), "\n".join(text))


def proof_of(report: CheckpointReport) -> tuple[State, str]:
    """The state and the sentence of what is proven."""
    mismatched = [finding for finding in report.findings if finding.kind in {"digest-mismatch", "swapped"}]
    if mismatched:
        return State.CRITICAL, f"{len(mismatched)} files are not those that were published"
    if report.level != "digest":
        read = f"{shown_size(report.checked_bytes)} of {shown_size(report.total_bytes)} read"
        return State.OK, f"{read} at level {report.level}; no digest was computed, so a turned bit would not be seen"
    n_proven = len(report.sha256) - len(report.unverifiable)
    state = State.WARNING if any(finding.kind == "no-digest" for finding in report.findings) else State.OK
    return state, f"{n_proven} of {len(report.sha256)} files are, to the bit, what was published"


def cost_rows(report: CheckpointReport, speed: HashingSpeed) -> list[tuple[str, str, str, str]]:
    """Each level: what it reads, what it proves, and how long it would take on this host."""
    total = report.total_bytes
    read_s = total / speed.read_bytes_per_s if speed.read_bytes_per_s else None
    hash_s = speed.duration_s(total)
    sampled = total // 128 + 128 * 1024 * len(report.shards)
    sample_s = sampled / speed.read_bytes_per_s + 1 if speed.read_bytes_per_s else None
    digest_s = max(hash_s, read_s or 0) if hash_s else None
    return [
        ("extents", "headers", "every file there, whole, and as the index says", "1 s"),
        ("sample", shown_size(min(sampled, total)), "no large hole, no zero-filled end", _shown_s(sample_s)),
        ("full-scan", shown_size(total), "no zeros, no NaN anywhere", _shown_s(read_s)),
        ("digest", shown_size(total), "every bit, where a digest is known", _shown_s(digest_s)),
        ("digest again", "sizes and times", "the same, by receipts", "1 s"),
    ]


def cost_shown(host: str, report: CheckpointReport, speed: HashingSpeed) -> Shown:
    """What each level would cost here."""
    rows = cost_rows(report, speed)
    rates = ", ".join(f"{name} {rate / GB:.2f}" for name, rate in speed.measured.items())
    summary = f"{speed.name}, {speed.n_processes} at once, would hash {speed.bytes_per_s / GB:.2f} GB/s"
    line = (
        f"Measured on the host just now, GB/s per core: {rates}; hashing runs at nice 10 and the lowest I/O priority."
    )
    html = headline(State.OK, summary, host=host) + table(rows, COST_COLUMNS) + note(line)
    text = "\n".join([f"{state_text(State.OK)}  {host}: {summary}", "", text_table(rows, COST_COLUMNS), line])
    return Shown(html, text)


def _shown_s(duration_s: float | None) -> str:
    if duration_s is None:
        return "-"
    return f"{max(1, round(duration_s))} s" if duration_s < 120 else f"{duration_s / 60:.0f} min"


def _drawn(bars: Sequence[Bar]) -> "Figure":
    """One bar per weight file, by name; what is missing stands as high as its neighbours, hollow."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - see `pictures`

    axes = (figure := new_figure(9.2, 2.2)).subplots()
    tallest = max((size for _, size, _ in bars), default=0) or 1
    unit, name = (GB, "GB") if tallest >= GB // 10 else (10**6, "MB")
    for number, (_, size, state) in enumerate(bars, 1):
        colour, height = STATE_COLOURS[state], (size or tallest) / unit
        axes.bar(number, height, width=0.8, color=colour if size else "none", edgecolor=colour, linewidth=0.8)
        if state is not State.OK:  # told by shape as well as by colour
            axes.annotate(STATE_SYMBOLS[state], (number, height), ha="center", va="bottom", color=colour)
    axes.set_title(f"weight files, {name}", loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("weight file, by name")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.18 * tallest / unit)
    axes.set_xlim(0.3, len(bars) + 0.7)
    baseline_only(axes)
    return figure
