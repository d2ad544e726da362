"""A stand-in for nvidia-smi: the queries that an operator asks, answered from the ledger."""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from opslib.rehearsal.standin.ledger import Ledger, load_settings, open_ledger

MIB = 1024**2
GPU_FIELDS = {  # query name -> column title
    "timestamp": "timestamp",
    "index": "index",
    "gpu_name": "name",
    "name": "name",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "count": "count",
    "driver_version": "driver_version",
    "pci.bus_id": "pci.bus_id",
    "pstate": "pstate",
    "compute_cap": "compute_cap",
    "memory.total": "memory.total [MiB]",
    "memory.used": "memory.used [MiB]",
    "memory.free": "memory.free [MiB]",
    "memory.reserved": "memory.reserved [MiB]",
    "utilization.gpu": "utilization.gpu [%]",
    "utilization.memory": "utilization.memory [%]",
    "temperature.gpu": "temperature.gpu",
    "power.draw": "power.draw [W]",
    "clocks.sm": "clocks.sm [MHz]",
    "clocks_throttle_reasons.active": "clocks_throttle_reasons.active",
    "power.limit": "power.limit [W]",
    "ecc.errors.uncorrected.volatile.total": "ecc.errors.uncorrected.volatile.total",
}
APP_FIELDS = {
    "timestamp": "timestamp",
    "gpu_name": "gpu_name",
    "gpu_uuid": "gpu_uuid",
    "gpu_bus_id": "gpu_bus_id",
    "pid": "pid",
    "process_name": "process_name",
    "name": "process_name",
    "used_gpu_memory": "used_gpu_memory [MiB]",
    "used_memory": "used_gpu_memory [MiB]",
}
GPU_DETAIL = """
<gpu id="%s"><product_name>%s</product_name><mig_mode><current_mig>Disabled</current_mig></mig_mode><uuid>%s</uuid>
<gpu_recovery_action>None</gpu_recovery_action><performance_state>P8</performance_state>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown></clocks_event_reasons>
<compute_mode>Default</compute_mode><ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
<ecc_errors><volatile><sram_correctable>0</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_correctable>0</dram_correctable>
<dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>0</remapped_row_unc>
<remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows></gpu>
"""
USAGE = 'Invalid combination of input arguments. Please run "nvidia-smi -h" for help.\n'


class Refused(Exception):  # noqa: N818 - the real program prints it and exits
    """What the real nvidia-smi prints on standard output, and its exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def uuid_of(index: int) -> str:
    """A stable identity per GPU."""
    digest = hashlib.sha256(b"gpu %d" % index).hexdigest()
    return "GPU-" + "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def gpu_row(ledger: Ledger, gpus: Dict[str, Any], index: int) -> Dict[str, Tuple[str, str]]:
    """Every field of one GPU as (value, unit)."""
    total = ledger.total_bytes // MIB
    used = min(total, ledger.used_bytes(index) // MIB)
    is_busy = used > 0
    return {
        "timestamp": (time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
        "index": (str(index), ""),
        "name": (gpus["name"], ""),
        "uuid": (uuid_of(index), ""),
        "count": (str(ledger.count), ""),
        "driver_version": (gpus["driver_version"], ""),
        "pci.bus_id": ("00000000:%02X:00.0" % (0x11 + 0x10 * index), ""),
        "pstate": ("P0" if is_busy else "P8", ""),
        "compute_cap": ("12.0", ""),
        "memory.total [MiB]": (str(total), " MiB"),
        "memory.used [MiB]": (str(used), " MiB"),
        "memory.free [MiB]": (str(total - used), " MiB"),
        "memory.reserved [MiB]": ("636", " MiB"),
        "utilization.gpu [%]": ("0", " %"),
        "utilization.memory [%]": ("0", " %"),
        "temperature.gpu": ("41" if is_busy else "29", ""),
        "power.draw [W]": ("84.20" if is_busy else "16.03", " W"),
        "clocks.sm [MHz]": ("2400" if is_busy else "180", " MHz"),
        "clocks_throttle_reasons.active": ("0x0000000000000000" if is_busy else "0x0000000000000001", ""),
        "power.limit [W]": ("600.00", " W"),
        "ecc.errors.uncorrected.volatile.total": ("0", ""),
    }


def app_rows(ledger: Ledger, gpus: Dict[str, Any], wanted: List[int]) -> List[Dict[str, Tuple[str, str]]]:
    """One row per GPU and living process."""
    rows = []
    for entry in ledger.entries():
        for gpu, used in sorted(entry["used_bytes"].items()):
            if entry["is_alive"] and int(gpu) in wanted:
                mine = gpu_row(ledger, gpus, int(gpu))
                rows.append(
                    {
                        "timestamp": mine["timestamp"],
                        "gpu_name": mine["name"],
                        "gpu_uuid": mine["uuid"],
                        "gpu_bus_id": mine["pci.bus_id"],
                        "pid": (str(entry["pid"]), ""),
                        "process_name": (entry["name"], ""),
                        "used_gpu_memory [MiB]": (str(int(used) // MIB), " MiB"),
                    }
                )
    return rows


def parse(argv: List[str]) -> Dict[str, Optional[str]]:
    """Options by their long name; anything unknown is refused as the real program does."""
    names = {"-i": "--id", "-L": "--list-gpus", "-q": "--query", "-x": "--xml-format"}
    valued = ("--query-gpu", "--query-compute-apps", "--format", "--id", "--loop-ms")
    options: Dict[str, Optional[str]] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        name = names.get(name, name)
        if name in valued:
            options[name] = value if has_value else (rest.pop(0) if rest else "")
        elif name in ("--list-gpus", "--version", "--query", "--xml-format") and not has_value:
            options[name] = None
        else:
            raise Refused(USAGE, 1)
    return options


def selected(options: Dict[str, Optional[str]], ledger: Ledger) -> List[int]:
    """The GPUs that `--id` names (by index or uuid), all without it."""
    if "--id" not in options:
        return list(range(ledger.count))
    by_name = {str(i): i for i in range(ledger.count)}
    by_name.update({uuid_of(i): i for i in range(ledger.count)})
    chosen = []
    for name in str(options["--id"]).split(","):
        if name not in by_name:
            raise Refused("No devices were found\n", 6)
        chosen.append(by_name[name])
    return chosen


def table(fields: Dict[str, str], asked: str, style: str, rows: List[Dict[str, Tuple[str, str]]]) -> str:
    """CSV as nvidia-smi writes it: ', ' between columns, units unless `nounits`."""
    styles = style.split(",")
    if "csv" not in styles or set(styles) - {"csv", "noheader", "nounits"}:
        raise Refused("Format option '%s' not supported\n" % style if style else USAGE, 2)
    names = asked.split(",")
    for name in names:
        if name.strip() not in fields:
            raise Refused('Field "%s" is not a valid field to query.\n\n' % name.strip(), 2)
    titles = [fields[name.strip()] for name in names]
    has_units = "nounits" not in styles
    lines = []
    if "noheader" not in styles:
        lines.append(", ".join(title if has_units else title.split(" [")[0] for title in titles))
    lines += [", ".join(row[title][0] + (row[title][1] if has_units else "") for title in titles) for row in rows]
    return "".join(line + "\n" for line in lines)


def topology(count: int) -> str:
    """The matrix of `topo -m`: half of the GPUs on each of two NUMA nodes, wired by PCIe."""
    half = max(1, (count + 1) // 2)
    lines = ["\t" + "\t".join(["GPU%d" % i for i in range(count)] + ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for i in range(count):
        links = [" X " if i == j else "NODE" if i // half == j // half else "SYS" for j in range(count)]
        node = i // half
        lines.append("\t".join(["GPU%d" % i, *links, "%d-%d" % (32 * node, 32 * node + 31), str(node), "N/A"]))
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n"


def detail(ledger: Ledger, gpus: Dict[str, Any]) -> str:
    """The part of `--query --xml-format` (driver 580) that tells of the GPUs' condition."""
    head = "<driver_version>%s</driver_version><cuda_version>13.0</cuda_version>" % gpus["driver_version"]
    rows = []
    for index in range(ledger.count):
        bus = gpu_row(ledger, gpus, index)["pci.bus_id"][0]
        rows.append(GPU_DETAIL % (bus, gpus["name"], uuid_of(index)))
    return '<?xml version="1.0" ?>\n<nvidia_smi_log>%s%s</nvidia_smi_log>\n' % (head, "".join(rows))


def answer(argv: List[str], settings: Dict[str, Any]) -> str:
    """What the program prints."""
    if argv == ["topo", "-m"]:
        return topology(open_ledger(settings).count)
    options = parse(argv)
    ledger, gpus = open_ledger(settings), settings["gpus"]
    chosen = selected(options, ledger)
    lost = [index for index in chosen if ledger.is_lost(index)]
    if lost and "--version" not in options:
        bus = gpu_row(ledger, gpus, lost[0])["pci.bus_id"][0]
        reason = "GPU is lost.  Reboot the system to recover this GPU"
        raise Refused("Unable to determine the device handle for GPU%d: %s: %s\n" % (lost[0], bus[4:], reason), 15)
    if "--query" in options:
        if "--xml-format" not in options:
            raise Refused(USAGE, 1)
        return detail(ledger, gpus)
    style = str(options.get("--format") or "")
    if "--list-gpus" in options:
        return "".join("GPU %d: %s (UUID: %s)\n" % (i, gpus["name"], uuid_of(i)) for i in chosen)
    if "--version" in options:
        return "NVIDIA-SMI version  : %s\nDRIVER version      : %s\n" % ((gpus["driver_version"],) * 2)
    if "--query-gpu" in options:
        rows = [gpu_row(ledger, gpus, index) for index in chosen]
        return table(GPU_FIELDS, str(options["--query-gpu"]), style, rows)
    if "--query-compute-apps" in options:
        return table(APP_FIELDS, str(options["--query-compute-apps"]), style, app_rows(ledger, gpus, chosen))
    raise Refused(USAGE, 1)


def main() -> int:
    """Print the answer, with `--loop-ms` again and again; 0, or the real program's status for what it refuses."""
    try:
        pause_s = loop_s(sys.argv[1:])
        while True:
            sys.stdout.write(answer(sys.argv[1:], load_settings()))
            if pause_s is None:
                return 0
            sys.stdout.flush()
            time.sleep(pause_s)
    except Refused as refusal:
        sys.stdout.write(str(refusal))
        return refusal.status
    except (BrokenPipeError, KeyboardInterrupt):
        return 1


def loop_s(argv: List[str]) -> Optional[float]:
    """Seconds between two answers, None where one is asked for; the real program takes no fewer than 1 ms."""
    if argv[:1] == ["topo"]:
        return None
    text = parse(argv).get("--loop-ms")
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise Refused(USAGE, 1)
    return int(text) / 1000.0
