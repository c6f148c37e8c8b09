"""The tables of `nvidia-smi topo -m` and `nvidia-smi topo -p2p`, as people paste them.

Rows are found by their names, not by columns: a paste has tabs or spaces, wrapped lines, cells that stick
together, prompts before the header.  A table is believed only if it is whole: a row for every GPU of the
header, a cell for every column, `X` on the diagonal, and the same cell in both directions.  Otherwise it has
a `problem`, which names the line.

Source of the letters: the legend that nvidia-smi prints (SOC is what drivers before 378 called SYS), and
nvml.h, nvmlGpuP2PStatus_t.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import zip_longest

from msgspec import Struct

from nodegauge_contract.model import MAX_GPUS, MAX_NICS

P2P_STATUS = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}
"""The letters of `topo -p2p` as NVML_P2P_STATUS_*."""
_CAPABILITIES = {"read": "r", "write": "w", "nvlink": "n", "nvl": "n", "atomics": "a", "prop": "p"}
_LETTERS = r"PIX|PXB|PHB|NODE|SYS|SOC"
_CELL = re.compile(rf"\s*(NV\d{{1,2}}(?![\d,-])|(?:X|{_LETTERS})(?![a-z]))")
"""One cell.  NV# directly before digits could be two things (NV1 and 2, NV12), so it is none."""
_STATUS = re.compile(r"\s*((?:X|OK|CNS|GNS|TNS|DR|NS|U)(?!\w))")
_STARTS_CELL = rf"\s*(?=(?:NV\d|(?:X|{_LETTERS})(?![a-z])|(?:OK|CNS|GNS|TNS|NS|DR|U)(?!\w)))"
_ROW = re.compile(rf"GPU\d{{1,3}}{_STARTS_CELL}")
_AFFINITY = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID|\bNUMA\b|\bAffinity\b")
_COLUMN = re.compile(r"(?:GPU|NIC|mlx\d_)\d{1,3}|[A-Za-z][\w.:-]{0,63}?(?=GPU\d|CPU|NUMA|\s|$)")
_ELIDED = re.compile(r"\.\.\.|…|\bsnip|\btruncated\b|\bomitted\b", re.IGNORECASE)
_REST = re.compile(r"(?:\s|\d[\d,-]*|,[\d,-]+|N/A)*")
_HEADER_LINES = 12
_CONTEXT_LINES = 8


class Kind(StrEnum):
    """Which command printed a table."""

    TOPOLOGY = "topo -m"
    P2P = "topo -p2p"


class Table(Struct, kw_only=True):
    """One table; its cells are empty if it has a problem."""

    kind: Kind
    """The command that printed it."""
    line: int
    """Line of its header, from 1."""
    gpus: int = 0
    """GPUs in its header."""
    cells: list[list[str]] = []
    """`cells[i][j]`: GPU i to GPU j, as printed."""
    nics: list[str] = []
    """Names of the columns after the GPUs, from the legend if it has them."""
    nic_cells: list[list[str]] = []
    """`nic_cells[i][n]`: GPU i to NIC n."""
    nic_rows: list[list[str]] = []
    """`nic_rows[n][m]`: NIC n to NIC m; empty for a row that is not whole."""
    cpus: list[str] = []
    """CPU affinity of each GPU; empty where not clear."""
    memory: list[str] = []
    """NUMA affinity of each GPU; empty where not clear."""
    capabilities: str = ""
    """Letters of `-p2p` (r, w, n, a, p); empty if the paste does not tell."""
    pcie_only: bool = False
    """Whether it is of `topo -mp`, which hides NVLinks."""
    problem: str = ""
    """Why it cannot be believed, with the line; empty if it can."""


class _Row(Struct):
    line: int
    text: str


class _Damaged(ValueError):
    """A table that is not whole; the message names the line."""


def tables(lines: Sequence[str]) -> list[Table]:
    """Every table in cleaned lines, in their order."""
    result: list[Table] = []
    start = previous_end = 0
    while start < len(lines):
        body = _body_after(lines, start)
        if body is None:
            start += 1
            continue
        table, end = _read(lines, start, body)
        before = lines[max(previous_end, start - _CONTEXT_LINES) : start + 1]
        _from_command(table, "\n".join(before))
        result.append(table)
        start = previous_end = end
    for table, following in zip_longest(result, result[1:]):
        stop = following.line - 1 if following is not None else len(lines)
        _from_legend(table, "\n".join(lines[table.line : stop]))
    return result


def _body_after(lines: Sequence[str], start: int) -> int | None:
    """The index of the line with the first row, if a header starts at `start`; else None.

    A header that somebody repeats counts from its last copy on.
    """
    if "GPU0" not in _ROW.split(lines[start], maxsplit=1)[0]:
        return None
    for index in range(start, min(len(lines), start + _HEADER_LINES)):
        if _ROW.search(lines[index]):
            return index
        text = lines[index].partition("GPU0")[2] if index == start else lines[index]
        if "GPU0" in text or (re.search(r"[=:;{}()]", text) and not _ELIDED.search(text)):
            return None
    return None


def _from_command(table: Table, before: str) -> None:
    """What the command line above the table tells."""
    options = re.findall(r"(?:-p2p|--p2pstatus)\s+([a-z]+)", before)
    if table.kind is Kind.P2P and options:
        word = _CAPABILITIES.get(options[-1], options[-1])
        table.capabilities = word if set(word) <= set("rwnap") else ""
    table.pcie_only = re.search(r"topo\s+(?:-mp|--matrix_pci)\b", before) is not None


def _from_legend(table: Table, legend: str) -> None:
    """The names of numbered NICs, and whether NVLinks have a letter at all (`topo -mp` has none)."""
    names = dict(re.findall(r"\b(NIC\d{1,3}):\s+(\S{1,64})", legend))
    table.nics = [names.get(name, name) for name in table.nics]
    complete = re.search(r"PIX\s*=", legend) and re.search(r"SYS\s*=", legend)
    table.pcie_only |= bool(complete) and "NV#" not in legend


def _read(lines: Sequence[str], start: int, body: int) -> tuple[Table, int]:
    """The table whose header starts at `start`, and the index behind it."""
    inline = _ROW.split(lines[body], maxsplit=1)[0] if _ROW.search(lines[body]) else ""
    header = "\n".join([*lines[start:body], inline])
    header = header[header.index("GPU0") :]
    affinities = len(_AFFINITY.findall(header))
    columns = _columns(header)
    rows, end = _rows(lines, body, columns)
    kind = Kind.P2P if _is_p2p(rows) else Kind.TOPOLOGY
    table = Table(kind=kind, line=start + 1)
    try:
        _check_header(header, columns, table)
        _fill(table, columns, rows, affinities=affinities)
    except _Damaged as error:
        table = Table(kind=kind, line=start + 1, gpus=table.gpus, problem=str(error))
    return table, end


def _columns(header: str) -> list[str]:
    return _COLUMN.findall(_AFFINITY.sub(" ", header))


def _is_p2p(rows: dict[str, _Row]) -> bool:
    """By the cells of the GPUs' rows: no letter is in both tables, except X."""
    text = " ".join(row.text for name, row in rows.items() if name.startswith("GPU"))
    return bool(re.search(r"\b(?:OK|CNS|GNS|TNS|NS|DR|U)\b", text)) and not re.search(
        rf"NV\d|\b(?:{_LETTERS})\b", text
    )


def _check_header(header: str, columns: list[str], table: Table) -> None:
    gpus = [name for name in columns if name.startswith("GPU")]
    table.gpus = len(gpus)
    if _ELIDED.search(header):
        raise _Damaged(f"line {table.line}: columns were left out of the header")
    if gpus != [f"GPU{index}" for index in range(len(gpus))]:
        raise _Damaged(
            f"line {table.line}: the header has {', '.join(gpus[:9])}: expected GPU0, GPU1 and so on"
        )
    if len(gpus) > MAX_GPUS or len(columns) - len(gpus) > MAX_NICS:
        raise _Damaged(f"line {table.line}: more than {MAX_GPUS} GPUs or {MAX_NICS} NICs")
    if columns[: len(gpus)] != gpus or len(set(columns)) != len(columns):
        raise _Damaged(f"line {table.line}: the columns are not GPUs, then NICs, each once")


def _rows(lines: Sequence[str], body: int, columns: list[str]) -> tuple[dict[str, _Row], int]:
    """The rows by name, joined where a line was wrapped, and the index of the line behind the last one."""
    names = "|".join(re.escape(name) for name in sorted(columns, key=len, reverse=True))
    label = re.compile(rf"(?<![\w.-])({names}|GPU\d{{1,3}}){_STARTS_CELL}")
    rows: dict[str, _Row] = {}
    last, end = "", body
    for index in range(body, len(lines)):
        line = lines[index]
        labels = list(label.finditer(line))
        head = line[: labels[0].start()] if labels else line
        if last and head.strip() and _continues(head):
            rows[last].text += " " + head.strip()
        elif not labels and line.strip():
            if last and _ELIDED.search(line):
                rows[last].text += " ..."
            break
        for match, following in zip_longest(labels, labels[1:]):
            if match[1] in rows:
                return rows, end
            last = match[1]
            text = line[match.end() : following.start() if following is not None else None]
            rows[last] = _Row(index + 1, text)
        end = index + 1
    return rows, max(end, body + 1)


def _continues(text: str) -> bool:
    """Whether a line is the rest of a row: cells, statuses, CPU lists and nothing else."""
    rest = re.sub(rf"NV\d{{1,2}}|\b(?:X|{_LETTERS}|OK|CNS|GNS|TNS|NS|DR|U)\b", " ", text)
    return _REST.fullmatch(rest) is not None


def _fill(table: Table, columns: list[str], rows: dict[str, _Row], *, affinities: int) -> None:
    """Read the cells.  Raises `_Damaged`."""
    gpus, nics = columns[: table.gpus], columns[table.gpus :]
    missing = [name for name in gpus if name not in rows]
    if missing:
        last = max((row.line for row in rows.values()), default=table.line)
        raise _Damaged(f"line {last}: the table is cut: no row of {', '.join(missing[:8])}")
    pattern = _STATUS if table.kind is Kind.P2P else _CELL
    extra = [name for name in rows if name.startswith("GPU") and name not in gpus]
    if extra:
        raise _Damaged(f"line {rows[extra[0]].line}: a row of {extra[0]}, which the header lacks")
    for i, name in enumerate(gpus):
        cells, rest = _cells(rows[name], name, columns=columns, pattern=pattern)
        if cells[i] != "X" or cells.count("X") != 1:
            raise _Damaged(
                f"line {rows[name].line}: expected X, and only there, where row and column are {name}"
            )
        table.cells.append(cells[: len(gpus)])
        table.nic_cells.append(cells[len(gpus) :])
        affinity = rest.split() if len(rest.split()) == affinities else []
        table.cpus.append(affinity[0] if affinity else "")
        table.memory.append(affinity[1] if len(affinity) > 1 else "")
    table.nics = nics
    for name in nics if table.kind is Kind.TOPOLOGY else []:
        table.nic_rows.append(_nic_row(rows.get(name), name, columns=columns)[len(gpus) :])
    if table.kind is Kind.TOPOLOGY:
        _check_symmetry(table, [rows[name].line for name in gpus])


def _nic_row(row: _Row | None, name: str, *, columns: list[str]) -> list[str]:
    try:
        return _cells(row, name, columns=columns, pattern=_CELL)[0] if row is not None else []
    except _Damaged:
        return []  # a NIC's row has no part in the class


def _cells(row: _Row, name: str, *, columns: list[str], pattern: re.Pattern[str]) -> tuple[list[str], str]:
    """One row's cells, one per column, and the text behind them.  Raises `_Damaged`."""
    cells: list[str] = []
    position = 0
    while len(cells) < len(columns) and (match := pattern.match(row.text, position)):
        cells.append(match[1])
        position = match.end()
    rest = row.text[position:]
    if len(cells) < len(columns):
        next_text = rest.split()[0][:16] if rest.strip() else "the end"
        raise _Damaged(
            f"line {row.line}: the table is cut: row {name} has {len(cells)} of {len(columns)} cells, then "
            f"{next_text}"
        )
    if pattern.match(rest):
        raise _Damaged(
            f"line {row.line}: row {name} has more cells than the header has columns ({len(columns)})"
        )
    return cells, rest


def _check_symmetry(table: Table, lines: list[int]) -> None:
    for i in range(table.gpus):
        for j in range(i):
            there, back = table.cells[i][j], table.cells[j][i]
            if there != back:
                raise _Damaged(
                    f"line {lines[i]}: GPU{i} to GPU{j} is {there}, but GPU{j} to GPU{i} is {back}"
                )
