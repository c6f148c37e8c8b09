"""Everything in a paste as one result document of the probe `pasted`, so that the one judge judges it.

Tables give the links between GPUs, `-q` gives readings, `-L` names; they are read together if they count the
same GPUs, with what logs and other tools state (`sections` separates machines).  What is cut or contradicts
itself becomes the document's `problem`, which leaves the node unjudged and without a class.  Nothing here
judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from nodegauge_contract.gpu import Gpu, LinkGroup
from nodegauge_contract.matrix import LETTERS
from nodegauge_contract.model import PASTED, Nics, Pairs, Result, System
from nodegauge_contract.nvlink import ACTIVE, REMOTE_GPU, REMOTE_SWITCH, ModelLinks
from nodegauge_contract.paste import Paste, PastedResult, StatementKind
from nodegauge_contract.pasted import (
    cleaning,
    diagnostics,
    failures,
    fields,
    kernel,
    links,
    machine,
    overview,
    query_csv,
    refusals,
)
from nodegauge_contract.pasted.query import LostGpu, Query, QueryAgain, QueryError, query
from nodegauge_contract.pasted.statements import Gathered
from nodegauge_contract.pasted.tables import P2P_STATUS, Kind, Table, tables
from nodegauge_contract.values import NOT_READ, Int, Problem, ProblemKind, Text, Unavailable

_LEVELS = {letters: level for level, letters in LETTERS.items() if level} | {"SOC": 50}
_OUTPUT = re.compile(
    r"nvidia.smi|NVSMI LOG|device handle for|\bUUID\s*:|\bGPU0|(?:Throttle|Event) Reasons|Remapped Rows|"
    r"Retired Pages|ECC Errors|GPU Current Temp|^\s*GPU [0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d\s*$|"
    r"^index, .*\w\.\w|Volatile Uncorr\. ECC",
    re.IGNORECASE | re.MULTILINE,
)
_LISTED = re.compile(r"\s*GPU\s+(\d{1,2}):\s+(\S.{0,100}?)\s+\(UUID:\s*([^)\s]{1,80})\)")
_MIG_LISTED = re.compile(r"\s*MIG\s+\d\S*\s+Device\s+\d+:")
_MAX_LINKS = 18
"""The most NVLinks that a GPU has had so far (Hopper, Blackwell)."""
Models = Callable[[str], "ModelLinks | None"]
"""What is known of the NVLinks of a product, by NVML's name; None if nothing is."""


class PasteError(ValueError):
    """Text that cannot be read; the message names the line and what to paste instead."""


class SeveralCaptures(PasteError):
    """Outputs of different times or machines in one text."""


class _Paste(Struct, kw_only=True):
    """What a paste holds, before it is put together."""

    topology: Table | None = None
    p2p: list[Table] = field(default_factory=list)
    query: Query = field(default_factory=Query)
    listed: list[Gpu] = field(default_factory=list)
    versions: tuple[str, str] = ("", "")
    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    stated: Gathered = field(default_factory=Gathered)


def looks_like(text: str) -> bool:
    """Whether this may be output of nvidia-smi: a table, `-L`, `-q`, `-q -x`, a part of one, or a message; or
    states something else that is known."""
    return _OUTPUT.search(text) is not None or bool(statements(text).captures)


def statements(text: str) -> Paste:
    """What a text states beside tables and readings."""
    return _stated(cleaning.lines(text)).paste()


def _stated(lines: Sequence[str]) -> Gathered:
    gathered = Gathered()
    kernel.read(lines, gathered)
    failures.read(lines, gathered)
    links.read(lines, gathered)
    machine.read(lines, gathered)
    diagnostics.read(lines, gathered)
    return gathered


def result(text: str, *, models: Models) -> Result:
    """The result document of a paste: probe `pasted`.  Raises `PasteError`.

    `models`: tells how many NVLinks a product has and how fast they are, which a table does not.
    """
    lines = cleaning.lines(text)
    try:
        paste = _Paste(query=query(text, lines), listed=_listed(lines), versions=overview.versions(lines))
    except (QueryAgain, overview.Again) as error:
        raise SeveralCaptures(str(error)) from None
    except QueryError as error:
        raise PasteError(str(error)) from None
    paste.lines, paste.stated = lines, _stated(lines)
    if not (paste.query.gpus or paste.listed):
        paste.query.gpus = query_csv.gpus(lines)
        if paste.query.gpus:
            paste.stated.drop(StatementKind.NOT_JUDGED, source=query_csv.SOURCE)
    for table in tables(lines):
        _add(paste, table)
    readings = paste.query.gpus or paste.query.lost or paste.listed
    if paste.topology is None and not (paste.p2p or readings or paste.problems or paste.stated.captures):
        raise PasteError(
            "no whole output was found: expected the table of `nvidia-smi topo -m` with its "
            "header `GPU0 GPU1 ...`, `nvidia-smi -q` from its line `NVSMI LOG` on, `nvidia-smi -q -x`, or "
            "the table of plain `nvidia-smi` from its first GPU on; or lines of a kernel log, a message of "
            "nvidia-smi, `nvidia-smi nvlink -s`, `dcgmi diag`, `dcgmi nvlink` or gpu-burn"
        )
    return _document(paste, models)


def _listed(lines: Sequence[str]) -> list[Gpu]:
    """The GPUs of plain `nvidia-smi` and of `-L` (and of `nvlink -s`, which prints the same lines)."""
    gpus = {gpu.index: gpu for gpu in overview.gpus(lines)}
    last = -1
    for line in lines:
        if match := _LISTED.match(line):
            last = int(match[1])
            gpus[last] = replace(gpus.get(last, Gpu(index=last)), uuid=match[3], name=match[2])
        elif last >= 0 and _MIG_LISTED.match(line):
            gpus[last] = replace(gpus[last], mig=1)
    return [gpus[index] for index in sorted(gpus)]


def _add(paste: _Paste, table: Table) -> None:
    if table.problem:
        paste.problems.append(f"{table.problem}. Paste all of `nvidia-smi {table.kind.value}`")
    elif table.kind is Kind.P2P:
        paste.p2p.append(table)
    elif paste.topology is None or (paste.topology.pcie_only and not table.pcie_only):
        paste.topology = table
    elif not table.pcie_only and table.cells != paste.topology.cells:
        raise SeveralCaptures(
            f"line {table.line}: a table that differs from the one in line {paste.topology.line}: judge "
            "different machines separately"
        )


def _document(paste: _Paste, models: Models) -> Result:
    gpus = _gpus(paste)
    topology = paste.topology
    if topology is not None and topology.pcie_only:
        paste.problems.append(
            f"line {topology.line}: the table of `topo -mp` hides NVLinks. Paste `nvidia-smi topo -m`"
        )
    pairs, nics = Pairs(), Nics()
    if topology is not None and not topology.pcie_only:
        gpus, pairs, nics = _linked(paste, gpus, topology, models=models)
    for table in paste.p2p:
        pairs = _with_p2p(pairs, table)
    problem = None
    if paste.problems:
        problem = Problem(kind=ProblemKind.PASTE_INCOMPLETE, message="; ".join(paste.problems)[:512])
    known = [table for table in (paste.topology, *paste.p2p) if table is not None]
    refusals.read(paste.lines, paste.stated, gpus=gpus, query=paste.query, listed=paste.listed, tables=known)
    return PastedResult(
        probe=PASTED,
        system=_system(paste),
        gpus=gpus,
        pairs=pairs,
        nics=nics,
        problem=problem,
        paste=paste.stated.paste(),
    )


def _gpus(paste: _Paste) -> list[Gpu]:
    """The GPUs that `-q` printed, with those that it could not read; else those of `-L`; else of a table."""
    asked = paste.query
    gpus = [
        fields.gpu(index if text.index is None else text.index, text) for index, text in enumerate(asked.gpus)
    ]
    known = {gpu.pci for gpu in gpus}
    lost = [_lost(address, gpu) for address, gpu in asked.lost.items() if fields.pci(address) not in known]
    if lost and not gpus:
        gpus = list(paste.listed)
    taken = {gpu.index for gpu in gpus}
    free = (index for index in range(64) if index not in taken)
    gpus += [gpu if gpu.index not in taken else replace(gpu, index=next(free)) for gpu in lost]
    gpus.sort(key=lambda gpu: gpu.index)
    _check_whole(paste, len(gpus))
    sizes = [(table.line, table.gpus) for table in (paste.topology, *paste.p2p) if table is not None]
    count = len(gpus) or (sizes[0][1] if sizes else 0)
    for line, size in sizes:
        if size != count:
            other = f"`nvidia-smi -q` has {count}" if gpus else f"the table in line {sizes[0][0]} has {count}"
            raise PasteError(
                f"line {line}: this table has {size} GPUs, {other}: judge different machines separately"
            )
    if gpus:
        return gpus
    missing = sorted(set(range(len(paste.listed))) - {gpu.index for gpu in paste.listed})
    if not sizes and missing and links.SMI not in paste.stated.captures:  # which people cut to what is wrong
        paste.problems.append(f"GPU {missing[0]} is missing in the list of GPUs. Paste all of it")
    if paste.listed and (not sizes or (not missing and len(paste.listed) == count)):
        return paste.listed
    return [Gpu(index=index) for index in range(count)]


def _check_whole(paste: _Paste, count: int) -> None:
    asked = paste.query
    for gpu in asked.gpus:
        if not gpu.whole:
            paste.problems.append(
                f"line {gpu.line}: the output for GPU {gpu.pci} ends before its section `Processes`. Paste "
                "all of `nvidia-smi -q`"
            )
    if asked.attached is not None and count and asked.attached != count:
        paste.problems.append(
            f"`nvidia-smi -q` says {asked.attached} GPUs are attached, the text has {count}. Paste all of it"
        )


def _lost(address: str, gpu: LostGpu) -> Gpu:
    lost = re.search(r"is lost|fallen off", gpu.message, re.IGNORECASE) is not None
    kind = ProblemKind.GPU_LOST if lost else ProblemKind.NVML_ERROR
    error = Problem(kind=kind, call="nvidia-smi", message=gpu.message)
    return Gpu(index=gpu.index or 0, pci=fields.pci(address), error=error)


def _system(paste: _Paste) -> System:
    driver, cuda = paste.query.driver or paste.versions[0], paste.query.cuda or paste.versions[1]
    version = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", cuda)
    return System(
        driver=driver[:128] or NOT_READ,
        cuda=int(version[1]) * 1000 + int(version[2]) * 10 if version else NOT_READ,
    )


def _linked(paste: _Paste, gpus: list[Gpu], table: Table, *, models: Models) -> tuple[list[Gpu], Pairs, Nics]:
    """The GPUs with the NVLinks of a table, the PCIe distances, and the NICs."""
    counts = [[int(cell[2:]) if cell.startswith("NV") else 0 for cell in row] for row in table.cells]
    known = [models(gpu.name) if isinstance(gpu.name, str) else None for gpu in gpus]
    most = [model.links if model is not None else _MAX_LINKS for model in known]
    switched = any(sum(row) > limit for row, limit in zip(counts, most, strict=True))
    ends = [max(row) for row in counts]
    if switched and any(
        counts[i][j] != min(ends[i], ends[j]) for i in range(len(ends)) for j in range(len(ends)) if i != j
    ):
        paste.problems.append(
            f"line {table.line}: the numbers of NVLinks fit neither NVSwitches nor direct links. Paste the "
            "table again"
        )
        return gpus, Pairs(), Nics()
    linked = [
        replace(
            gpu,
            links=_links(counts[i], switched=switched, mbps=_mbps(known[i])),
            cpus=table.cpus[i] or NOT_READ,
            memory_nodes=table.memory[i] or NOT_READ,
        )
        for i, gpu in enumerate(gpus)
    ]
    ancestor: list[list[Int]] = [
        [-1 if cell == "X" else _LEVELS.get(cell, _behind_nvlink(cell)) for cell in row]
        for row in table.cells
    ]
    return linked, Pairs(ancestor=ancestor), _nics(table)


def _behind_nvlink(cell: str) -> Unavailable:
    return Unavailable(f"the table shows {cell} instead")


def _links(counts: list[int], *, switched: bool, mbps: Int) -> list[LinkGroup]:
    """A row's NVLinks, numbered in the order of the columns; the table does not tell their real numbers."""
    if switched:
        ports = list(range(max(counts)))
        return (
            [LinkGroup(links=ports, state=ACTIVE, p2p=1, remote_type=REMOTE_SWITCH, mbps=mbps)]
            if ports
            else []
        )
    groups: list[LinkGroup] = []
    first = 0
    for peer, count in enumerate(counts):
        if count:
            ports = list(range(first, first + count))
            groups.append(
                LinkGroup(
                    links=ports, state=ACTIVE, p2p=1, remote=f"GPU{peer}", remote_type=REMOTE_GPU, mbps=mbps
                )
            )
            first += count
    return groups


def _mbps(model: ModelLinks | None) -> Int:
    return Unavailable("the paste does not name a known model") if model is None else round(model.gbps * 1000)


def _nics(table: Table) -> Nics:
    if not table.nics:
        return Nics()
    by_nic = [[row[number] for row in table.nic_cells] for number in range(len(table.nics))]
    between: list[list[Text]] = [[*row] or [NOT_READ for _ in table.nics] for row in table.nic_rows]
    return Nics(
        names=table.nics,
        pci=[NOT_READ for _ in table.nics],
        to_gpu=[[*row] for row in by_nic],
        to_nic=between,
    )


def _with_p2p(pairs: Pairs, table: Table) -> Pairs:
    """The P2P statuses of one table.  One without its command may be of any capability: refusals in it are
    then unknown, and OK says nothing."""
    grid: list[list[Int]] = [[-1 if cell == "X" else P2P_STATUS[cell] for cell in row] for row in table.cells]
    if not table.capabilities:
        unclear = [[status if status <= 0 else P2P_STATUS["U"] for status in row] for row in grid]  # type: ignore[operator]
        return replace(pairs, read=unclear) if any(6 in row for row in unclear) and not pairs.read else pairs
    grids = {"r": "read", "w": "write", "n": "nvlink"}
    return replace(pairs, **{grids[letter]: grid for letter in table.capabilities if letter in grids})
