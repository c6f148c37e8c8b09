"""The matrix of `nvidia-smi topo -m`, from a result document.

People know this table by heart, so it keeps the tool's names, order and wording, in the style of the driver's
release.  Only the spacing differs: columns are padded with spaces, because the tool's tabs no longer line up
behind long CPU lists.

NV# comes from `lanes` and replaces the PCIe letters if links connect a pair, whatever the P2P status: that is
what the tool does, and P2P is judged elsewhere.  A cell that could not be read is "N/A".  Pure: no I/O.
"""

from __future__ import annotations

from enum import IntEnum

from nodegauge_contract.gpu import Gpu
from nodegauge_contract.model import Result
from nodegauge_contract.nvlink import Lanes, lanes
from nodegauge_contract.values import Int, Text, Unavailable

LETTERS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML_TOPOLOGY_* to the tool's letters.  INTERNAL (0, two GPUs on one board) prints as PIX."""

NOT_AVAILABLE = "N/A"
SELF = " X"


class Style(IntEnum):
    """What the table looks like; each value is the first driver branch with that look."""

    CPU_ONLY = 0
    """Network cards by their own names, "CPU Affinity" alone, "PCIe switch" in the legend."""

    NUMA = 450
    """"NUMA Affinity" column, "PCIe bridge" in the legend.  Inferred: the call behind the column came with
    CUDA 11.0 (450); recordings agree, but the exact release of the change is unknown."""

    NUMBERED_NICS = 520
    """NIC0, NIC1, … with their names in a separate legend.  The least certain boundary: recordings of about
    510 name the devices, those of 535 number them."""

    GPU_NUMA = 535
    """"GPU NUMA ID" column.  Inferred: the call behind it, nvmlDeviceGetNumaNodeId, came between NVIDIA's
    bindings of 535 and 550, and matrices with the column are known from 535 on."""


_HEAD = (
    ("X", "Self"),
    ("SYS", "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)"),
    (
        "NODE",
        "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    ),
    ("PHB", "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)"),
)
_SWITCHES = (
    ("PXB", "Connection traversing multiple PCIe switches (without traversing the PCIe Host Bridge)"),
    ("PIX", "Connection traversing a single PCIe switch"),
)
_BRIDGES = (
    ("PXB", "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)"),
    ("PIX", "Connection traversing at most a single PCIe bridge"),
)
_TAIL = (("NV#", "Connection traversing a bonded set of # NVLinks"),)


def style(driver: Text) -> Style:
    """The style of a driver version ("535.129.03"); an unknown one prints as the newest."""
    head = driver.partition(".")[0] if isinstance(driver, str) else ""
    if not head.isdigit() or len(head) > 6:
        return max(Style)
    return max(look for look in Style if look <= int(head))


def render(result: Result, *, width: int | None = None, joined: Lanes | None = None) -> str:
    """The matrix with its legends; empty without a GPU in the document.  Ends without a newline.

    `width` is that of a terminal: columns that do not fit follow below, with their headers.  `joined`: the
    document's NVLinks, where they are counted already.
    """
    if not result.gpus:
        return ""
    look = style(result.system.driver)
    rows = _rows(result, look, joined or lanes(result))
    gpus, nics = len(result.gpus), len(result.nics.names)
    blocks = [list(range(len(rows[0])))]
    if width is not None and _width(rows, blocks[0]) > width:
        affinities = [*range(gpus + 1), *range(gpus + nics + 1, len(rows[0]))]
        blocks = [
            *_fitting(rows, affinities, width),
            *_fitting(rows, [0, *range(gpus + 1, gpus + nics + 1)], width),
        ]
    tables = [_block(rows, columns) for columns in blocks if len(columns) > 1]
    return "\n\n".join([*tables, _legend(look), *_nic_legend(result, look)])


def _fitting(rows: list[list[str]], columns: list[int], width: int) -> list[list[int]]:
    """The columns in runs that fit, each behind the column of names."""
    runs = [[0]]
    for column in columns[1:]:
        if len(runs[-1]) > 1 and _width(rows, [*runs[-1], column]) > width:
            runs.append([0])
        runs[-1].append(column)
    return runs


def _width(rows: list[list[str]], columns: list[int]) -> int:
    return sum(max(len(row[column]) for row in rows) for column in columns) + 2 * (len(columns) - 1)


def _block(rows: list[list[str]], columns: list[int]) -> str:
    """These columns of the table; empty rows are left out."""
    widths = [max(len(row[column]) for row in rows) for column in columns]
    lines = []
    for row in rows:
        cells = [row[column] for column in columns]
        if any(cells[1:]):
            lines.append("  ".join(map(str.ljust, cells, widths)).rstrip())
    return "\n".join(lines)


def _rows(result: Result, look: Style, joined: Lanes) -> list[list[str]]:
    """Header and body as cells, every row of the same length."""
    affinity = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][: _affinity_columns(look)]
    gpus = [f"GPU{gpu.index}" for gpu in result.gpus]
    nics = _nic_names(result, look)
    to_gpu, to_nic = result.nics.to_gpu, result.nics.to_nic
    pairs = pair_cells(result, joined)
    rows = [["", *gpus, *nics, *affinity]]
    for i, gpu in enumerate(result.gpus):
        nic_cells = [_text(_cell(to_gpu, n, i)) for n in range(len(nics))]
        rows.append([gpus[i], *pairs[i], *nic_cells, *_affinity(gpu, look)])
    for n, name in enumerate(nics):
        cells = [_text(_cell(to_gpu, n, i)) for i in range(len(gpus))]
        cells += [SELF if n == m else _text(_cell(to_nic, n, m)) for m in range(len(nics))]
        rows.append([name, *cells, *[""] * len(affinity)])
    return rows


def pair_cells(result: Result, joined: Lanes) -> list[list[str]]:
    """The square of the GPUs alone, row and column in the order of `gpus`: X, NV18, PIX, SYS, N/A."""
    links = joined.pair
    indices = range(len(result.gpus))
    return [
        [
            SELF if i == j else f"NV{links[i][j]}" if links[i][j] else _letters(result.pairs.ancestor, i, j)
            for j in indices
        ]
        for i in indices
    ]


def _letters(grid: list[list[Int]], i: int, j: int) -> str:
    level = grid[i][j] if i < len(grid) and j < len(grid[i]) else None
    return LETTERS.get(level, NOT_AVAILABLE) if isinstance(level, int) else NOT_AVAILABLE


def _cell(grid: list[list[Text]], i: int, j: int) -> Text | None:
    return grid[i][j] if i < len(grid) and j < len(grid[i]) else None


def _text(value: Text | None) -> str:
    return value if isinstance(value, str) and value else NOT_AVAILABLE


def _affinity_columns(look: Style) -> int:
    return 1 + (look >= Style.NUMA) + (look >= Style.GPU_NUMA)


def _affinity(gpu: Gpu, look: Style) -> list[str]:
    number = gpu.gpu_numa_id
    numa_id = NOT_AVAILABLE if isinstance(number, Unavailable) else str(number)
    return [_text(gpu.cpus), _text(gpu.memory_nodes), numa_id][: _affinity_columns(look)]


def _nic_names(result: Result, look: Style) -> list[str]:
    names = result.nics.names
    return [f"NIC{n}" for n in range(len(names))] if look >= Style.NUMBERED_NICS else list(names)


def _legend(look: Style) -> str:
    entries = (*_HEAD, *(_BRIDGES if look >= Style.NUMA else _SWITCHES), *_TAIL)
    return "\n".join(["Legend:", "", *(f"  {name:<4} = {meaning}" for name, meaning in entries)])


def _nic_legend(result: Result, look: Style) -> list[str]:
    names = result.nics.names
    if look < Style.NUMBERED_NICS or not names or names == _nic_names(result, look):
        return []
    return ["\n".join(["NIC Legend:", "", *(f"  NIC{n}: {name}" for n, name in enumerate(names))])]
