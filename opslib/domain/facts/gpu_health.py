"""What `nvidia-smi --query` says of each GPU's condition, and which CUDA the driver knows."""

import re
from xml.etree import ElementTree as ET

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
_MAX_CHARS = 4_000_000


class GpuHealth(Value):
    """One GPU's condition; a figure that the driver doesn't give is 0 or "" (consumer cards have no ECC)."""

    uuid: str
    n_uncorrected: int = 0  # volatile ECC errors: since the driver was loaded
    is_remap_pending: bool = False
    has_remap_failed: bool = False
    recovery_action: str = ""  # "" or what the driver wants: Reset, Reboot, Drain P2P, ...
    slowdowns: tuple[str, ...] = ()  # active now
    is_partitioned: bool = False  # MIG
    compute_mode: str = ""


class DriverHealth(Value):
    """The driver, the CUDA that it knows at most, and its GPUs."""

    driver_version: str = ""
    cuda_version: str = ""
    gpus: tuple[GpuHealth, ...] = ()


def gpu_health_command() -> tuple[str, ...]:
    """Asks for everything that the driver knows of all GPUs; the one form that survives renamed fields."""
    return ("nvidia-smi", "--query", "--xml-format")


def parse_gpu_health(text: str) -> DriverHealth:
    """Reads the answer to `gpu_health_command`; elements that a driver doesn't have are passed over.

    Raises UnexpectedAnswer. Source: nvidia_smi_log of drivers 470 to 595 (550 renamed the clocks' reasons).
    """
    body = re.sub(r"<!DOCTYPE[^>]*>", "", text[:_MAX_CHARS])
    if "<!" in body.replace("<!--", ""):
        raise UnexpectedAnswer("nvidia-smi's answer declares entities")
    try:
        root = ET.fromstring(body.strip())  # noqa: S314 - without declarations nothing expands
    except ET.ParseError as error:
        raise UnexpectedAnswer(f"nvidia-smi's answer is no XML: {text.strip()[:100]!r}") from error
    return DriverHealth(
        driver_version=_text(root, "driver_version"),
        cuda_version=_text(root, "cuda_version"),
        gpus=tuple(_gpu(node) for node in root.iter("gpu")),
    )


def _gpu(node: ET.Element) -> GpuHealth:
    action = _text(node, "gpu_recovery_action")
    volatile = node.find("ecc_errors/volatile")
    return GpuHealth(
        uuid=_text(node, "uuid"),
        n_uncorrected=_uncorrected(volatile) if volatile is not None else 0,
        is_remap_pending=_is_yes(node, "remapped_rows/remapped_row_pending")
        or _is_yes(node, "retired_pages/pending_retirement")
        or _is_yes(node, "ecc_errors/channel_repair_pending"),
        has_remap_failed=_is_yes(node, "remapped_rows/remapped_row_failure")
        or _is_yes(node, "ecc_errors/unrepairable_memory"),
        recovery_action="" if action == "None" else action,
        slowdowns=_slowdowns(node),
        is_partitioned=_text(node, "mig_mode/current_mig") == "Enabled",
        compute_mode=_text(node, "compute_mode"),
    )


def _uncorrected(volatile: ET.Element) -> int:
    """The sum of what is called uncorrectable; of an older driver's `double_bit`, its total."""
    figures = [child.text or "" for child in volatile if "uncorrectable" in child.tag]
    figures += [child.findtext("total", "") for child in volatile if child.tag == "double_bit"]
    return sum(int(figure) for figure in figures if figure.strip().isdecimal())


def _slowdowns(node: ET.Element) -> tuple[str, ...]:
    """What slows the clocks now, but for a power limit that somebody set."""
    for block in ("clocks_event_reasons", "clocks_throttle_reasons"):
        found = node.find(block)
        if found is not None:
            active = {child.tag.partition("_reason_")[2] for child in found if (child.text or "").strip() == "Active"}
            return tuple(name for name in _SLOWDOWNS if name in active)
    return ()


def _is_yes(node: ET.Element, path: str) -> bool:
    return _text(node, path) == "Yes"


def _text(node: ET.Element, path: str) -> str:
    """The element's text, "" where there is none or the driver has nothing to say."""
    text = (node.findtext(path) or "").strip()
    return "" if text in ("N/A", "[N/A]", "Unknown Error") else text
