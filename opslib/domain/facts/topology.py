"""How a host's GPUs are wired: what `nvidia-smi topo -m` says, and which of them belong together."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from opslib.domain.states import Value

# from best to worst, as the program's own legend orders them
_ORDER = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|OK|NS|N/A")
_MAX_SETS = 20_000


class Topology(Value):
    """The link between each two GPUs ("NV18", "PIX", "NODE", "SYS"), and each GPU's NUMA node where it is known."""

    links: Mapping[tuple[int, int], str] = {}
    numa_nodes: Mapping[int, int] = {}

    def worst_link(self, gpus: Sequence[int]) -> str:
        """The slowest link among some GPUs; "" where it isn't known."""
        found = [self.links.get((min(pair), max(pair)), "") for pair in combinations(gpus, 2)]
        return max(found, key=_rank, default="")

    def nodes_of(self, gpus: Iterable[int]) -> frozenset[int]:
        """The NUMA nodes that some GPUs lie on."""
        return frozenset(self.numa_nodes[gpu] for gpu in gpus if gpu in self.numa_nodes)

    def choose(self, n_gpus: int, free: Mapping[int, int], needed: int = 0) -> tuple[int, ...]:
        """The `n_gpus` that belong together best: enough free memory, one NUMA node, the fastest slowest link.

        `free` and `needed` are bytes. Empty where there are fewer GPUs.

        >>> Topology(numa_nodes={0: 0, 1: 0, 2: 1, 3: 1}).choose(2, {0: 5, 1: 9, 2: 9, 3: 9}, 8)
        (2, 3)
        """
        indices = sorted(free)
        if not 0 < n_gpus <= len(indices):
            return ()

        def cost(gpus: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
            short = sum(free[gpu] < needed for gpu in gpus)
            return short, len(self.nodes_of(gpus)), _rank(self.worst_link(gpus)), gpus

        sets = [gpus for gpus, _ in zip(combinations(indices, n_gpus), range(_MAX_SETS), strict=False)]
        return min(sets, key=cost)


def _rank(link: str) -> int:
    word = "NV" if link.startswith("NV") else link
    return _ORDER.index(word) if word in _ORDER else len(_ORDER)


def topology_command() -> tuple[str, ...]:
    """Asks how the GPUs are wired."""
    return ("nvidia-smi", "topo", "-m")


def parse_topology(text: str) -> Topology:
    """Reads the matrix of `nvidia-smi topo -m`; what is no matrix gives a topology that knows nothing.

    Columns are separated by tabs (or, as some tools keep them, by blanks); network cards are passed over.
    """
    lines = [line for line in _ESCAPES.sub("", text).splitlines() if line.strip()]
    head = next((line for line in lines if re.search(r"\bGPU\d+\b", line) and not re.match(r"GPU\d", line)), None)
    if head is None:
        return Topology()
    columns = [int(name) for name in re.findall(r"\bGPU(\d+)\b", head)]
    links: dict[tuple[int, int], str] = {}
    nodes: dict[int, int] = {}
    for line in lines:
        if not (match := re.match(r"GPU(\d+)\s", line)) or line == head:
            continue
        gpu, words = int(match[1]), line[match.end() :].split()
        for other, link in zip(columns, words, strict=False):
            if _LINK.fullmatch(link) and link != "X":
                links[(min(gpu, other), max(gpu, other))] = link
        node = _numa_node(line, head)
        if node is not None:
            nodes[gpu] = node
    return Topology(links=links, numa_nodes=nodes)


def _numa_node(line: str, head: str) -> int | None:
    """The column "NUMA Affinity": by its place among tabs, else the first bare number after the CPU list."""
    titles, cells = head.split("\t"), line.split("\t")
    place = next((index for index, title in enumerate(titles) if title.strip() == "NUMA Affinity"), None)
    if place is not None and place < len(cells) and (found := re.match(r"\s*(\d+)", cells[place])):
        return int(found[1])
    if "NUMA Affinity" not in head:
        return None
    found = re.search(r"\s\d+-\d+(?:,\d+(?:-\d+)?)*\s+(\d+)", line)
    return int(found[1]) if found else None
