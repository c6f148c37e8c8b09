"""The output of nccl-tests (all_reduce_perf and its siblings), parsed line by line into typed rows.

NCCL's own lines appear between rows and even inside them, and launchers put prefixes before every line.
`table` reads one row, `ranks` tells how many took part, `document` turns a log into a result.

Titles and footers: nccl-tests src/util.cu and, before that file, src/common.cu and src/*.cu.  Pure, and
bounded in characters, rows and ranks.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from nodegauge_contract.nccl_tests.table import ELEMENT_BYTES, Columns, Row, Table, Timing
from nodegauge_contract.values import NOT_READ, Text, Unavailable

HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
MAX_CHARS = 1024 * 1024
MAX_ROWS = 16_384
MAX_DEVICES = 4096

_DEVICE = re.compile(
    r"Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S{1,255})\s+device\s+\d+\s+\[([^\]]*)\]\s*(.*)"
)
LIBRARY = re.compile(r"NCCL version (\d+(?:\.\d+){1,3})[^\s+]*(?:\+cuda(\d+(?:\.\d+)*))?")
"""NCCL's version line (src/init.cc); logs of nccl-tests and of NCCL both have it."""
_TITLE = re.compile(r"nccl-tests version (\S{1,64})")
_CODE = re.compile(r"nccl-library=(\d{4,6})\b")
_PROGRAM = re.compile(r"\b([a-z_]{1,32}?)_perf(?:_mpi)?\b")
_PROCESS = re.compile(r"nThread (\d{1,4}) nGpus (\d{1,4})\b")
_NCCL_LINE = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ERROR)\b")
_PREAMBLE = re.compile(r"\s*(\d{1,19})\s+(\d{1,19})\s+([a-z]\w{0,15})\b(.*)")
_PREFIXED = re.compile(rf"(?<![^\s>:|\]])(\d{{1,19}})\s+(\d{{1,19}})\s+({'|'.join(ELEMENT_BYTES)})\b(.*)")
"""A row behind a prefix that is not in `_TAG`."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_RANK_TAG = re.compile(r"\[\d{1,6}\](?=\s)")
"""Some launchers print the rank at each write, also inside a row (NVIDIA/nccl issue 1453)."""
_TAG = re.compile(
    r"\s{0,16}(?:\[pod/[^\]\s]{1,255}\] |\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) |"
    r"\s{0,8}\d{1,6}: {1,2}|\[[^\]\s,]{1,255},\d+\](?:<std\w+>)?:\s?){1,4}"
)
"""Prefixes of `kubectl logs --prefix`, `kubectl logs --timestamps`, `srun --label` and `mpirun --tag-output`;
several of them where one runs inside the other."""
_CHOICE = re.compile(
    r"NCCL INFO (\w{1,32}): (\d{1,19}) Bytes -> Algo ([A-Za-z]\w{1,31}) proto ([A-Za-z]\w{1,31})"
)
"""NCCL's own line for a call (NCCL_DEBUG_SUBSYS=TUNING); releases before 2.24 print numbers there."""
MAX_CHOICES = 4096
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure .*|.*Test failure \S+:\d+.*")
_TIMEOUT = re.compile(r"Test timeout \(\d+s\).*")
"""Printed after `-T` seconds without progress (testStreamSynchronize in src/common.cu)."""
_ELIDED = re.compile(r"[^\w]*(?:\.\.|…)[^\w]*|.*\b(?:snip|snipped|omitted|elided|truncated)\b.*", re.I)
_SUMMARY = re.compile(r"Out of bounds values\s*:\s*(\d{1,19})")


class NcclTestsError(ValueError):
    """A log that cannot be parsed; the message names the line and what was expected there."""


class Device(Struct, frozen=True, kw_only=True):
    """One rank of the block `Using devices`; `pci` in sysfs form if the log has all of it."""

    rank: int
    group: int
    host: str
    pci: Text
    name: str


class Log(Struct, kw_only=True):
    """A whole log."""

    devices: list[Device] = field(default_factory=list)
    """The ranks of the last list before the first table."""
    tables: list[Table] = field(default_factory=list)
    """In the order of the log."""
    nccl: Text = NOT_READ
    """Version of NCCL."""
    cuda: Text = NOT_READ
    """Version of CUDA that NCCL's version line names."""
    version: Text = NOT_READ
    """Version of nccl-tests."""
    failure: str = ""
    """The first line in which a test failed; empty if none did."""
    timeout: str = ""
    """The last line in which a test gave up waiting; empty if none did."""
    elided: bool = False
    """Whether somebody shortened the list of devices."""
    per_process: int = 0
    """Ranks of one process (`-t` times `-g`); 0 if the log does not say."""
    chosen: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    """Algorithm and protocol by NCCL's name of the collective and the bytes that one rank contributes."""


def looks_like(text: str) -> bool:
    """Whether this may be such a log: a header of its table, or a line of its list of ranks."""
    return any(
        Columns.from_header(_untagged(line)) is not None or _DEVICE.search(line) for line in text.splitlines()
    )


def parse(text: str) -> Log:
    """The whole log.  Raises `NcclTestsError`."""
    if len(text) > MAX_CHARS:
        raise NcclTestsError(f"more than {MAX_CHARS} characters; a log of nccl-tests is far smaller")
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.read(number, _untagged(line))
    reader.drop_cut_row(last=len(text.rstrip().splitlines()))
    return reader.log


def _untagged(line: str) -> str:
    """The line as nccl-tests wrote it."""
    line = _COLOUR.sub("", line)
    tag = _TAG.match(line)
    return line[tag.end() :] if tag is not None else line


class _PartialRow(Struct, frozen=True, kw_only=True):
    """The left part of a row, whose times may come on a later line."""

    line: int
    size: str
    count: str
    type: str
    left: list[str]


class _Reader:
    """Reads line after line into `log`."""

    def __init__(self) -> None:
        self.log = Log()
        self._columns: Columns | None = None
        self._partial: _PartialRow | None = None
        self._program = ""
        self._listed: list[Device] = []
        self._rows = 0
        self._unreadable: NcclTestsError | None = None

    def read(self, number: int, line: str) -> None:
        """One line of the log.  A row that cannot be read is an error unless the log ends in it."""
        if self._unreadable is not None and line.strip():
            raise self._unreadable
        table_part = _NCCL_LINE.split(line)[0] if _NCCL_LINE.search(line) else line
        self._facts(line)
        if device := _DEVICE.search(line):
            self._device(number, device)
        elif (columns := Columns.from_header(line)) is not None:
            self._columns, self._partial = columns, None
            self.log.tables.append(Table(header=number, program=self._program))
        elif self._columns is not None and not line.lstrip().startswith("#"):
            self._row(number, _RANK_TAG.sub(" ", table_part), whole=table_part is line)
        elif self._listed and not self.log.tables and _ELIDED.fullmatch(line):
            self.log.elided = True
        self._footer(number, line)

    def drop_cut_row(self, *, last: int) -> None:
        """Forget the last row if the log ends in it, after the first of two halves."""
        rows = self.log.tables[-1].rows if self.log.tables else []
        if (
            len(rows) > 1
            and rows[-1].line == last
            and rows[-1].out_of_place is None
            and rows[-2].out_of_place
        ):
            rows.pop()

    def _facts(self, line: str) -> None:
        log = self.log
        if match := LIBRARY.search(line):
            log.nccl, log.cuda = match[1], match[2] or log.cuda
        if match := _TITLE.search(line):
            log.version = match[1]
        if (match := _CODE.search(line)) and not isinstance(log.nccl, str):
            log.nccl = _version(int(match[1]))
        if (match := _PROGRAM.search(line)) and "concluded" not in line:
            self._program = match[1]
        if (match := _CHOICE.search(line)) and len(log.chosen) < MAX_CHOICES:
            log.chosen[match[1], int(match[2])] = (match[3].upper(), match[4].upper())
        if (match := _FAILURE.search(line)) and not log.failure:
            log.failure = " ".join(match[0].split())[:512]
        if match := _TIMEOUT.search(line):
            log.timeout = match[0].strip()[:512]
        if match := _PROCESS.search(line):
            log.per_process = int(match[1]) * int(match[2])

    def _device(self, number: int, match: re.Match[str]) -> None:
        device = Device(
            rank=int(match[1]),
            group=int(match[2] or 0),
            host=match[3],
            pci=_pci(match[4]),
            name=match[5].strip()[:128],
        )
        if self._listed and device.rank == self._listed[0].rank:
            self._listed = []  # the next test's list
        self._listed.append(device)
        if len(self._listed) > MAX_DEVICES:
            raise NcclTestsError(f"line {number}: more than {MAX_DEVICES} ranks")
        known = self.log.devices
        if not self.log.tables:
            self.log.devices = list(self._listed)
        elif device not in known:
            raise NcclTestsError(
                f"line {number}: rank {device.rank} is a different GPU or host than in the table above; "
                "judge the logs of different machines separately"
            )

    def _row(self, number: int, line: str, *, whole: bool) -> None:
        """A row, a part of one, or another line."""
        assert self._columns is not None
        if match := _PREAMBLE.match(line) or _PREFIXED.search(line):
            rest = match[4].split()
            self._partial = _PartialRow(line=number, size=match[1], count=match[2], type=match[3], left=rest)
            left, halves = self._columns.split(rest, int(match[1]))
            if not halves and whole and len(rest) >= self._columns.width:
                self._unreadable = self._mismatch(number)
        elif self._partial is not None and whole:
            _, halves = self._columns.split(line.split(), int(self._partial.size))
            left = self._partial.left
        else:
            return
        if halves:
            self._add(self._partial, left=left, halves=halves)
            self._partial = None

    def _mismatch(self, number: int) -> NcclTestsError:
        assert self._columns is not None
        expected = " ".join(" ".join(names) for names in self._columns.halves)
        return NcclTestsError(f"line {number}: expected the columns `{expected}` at the end of the row")

    def _add(self, row: _PartialRow, *, left: list[str], halves: list[Timing | None]) -> None:
        self._rows += 1
        if self._rows > MAX_ROWS:
            raise NcclTestsError(f"line {row.line}: more than {MAX_ROWS} rows")
        if row.type not in ELEMENT_BYTES:
            known = ", ".join(ELEMENT_BYTES)
            raise NcclTestsError(f"line {row.line}: unknown type {row.type}, expected one of {known}")
        self.log.tables[-1].rows.append(
            Row(
                line=row.line,
                bytes=int(row.size),
                count=int(row.count),
                element=ELEMENT_BYTES[row.type],
                redop=any(word.isalpha() and word != "none" for word in left),
                root=any(word.isdigit() for word in left),
                in_place=halves[0],
                out_of_place=halves[1] if len(halves) > 1 else None,
            )
        )

    def _footer(self, number: int, line: str) -> None:
        if not self.log.tables:
            return
        table = self.log.tables[-1]
        if match := _SUMMARY.search(line):
            table.wrong, table.summary = int(match[1]), number
        if "Avg bus bandwidth" in line:
            table.finished = True
            self._columns = self._partial = None


def _pci(text: str) -> Text:
    """`0000:b4:00` as `0000:b4:00.0`; old logs give only the bus, and some of them 0x00 for every GPU."""
    if match := re.fullmatch(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})", text.strip()):
        return f"{match[1]}:{match[2]}:{match[3]}.0".lower()
    return Unavailable(f"the log gives only {text.strip()[:32]}")


def _version(code: int) -> str:
    """`2.30.3` of 23003, `2.8.4` of 2804 (NCCL_VERSION of nccl.h changed its base with 2.9)."""
    base = 10_000 if code >= 10_000 else 1_000
    return f"{code // base}.{code % base // 100}.{code % 100}"
