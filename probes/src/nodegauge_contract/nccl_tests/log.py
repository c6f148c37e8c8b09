"""The output of nccl-tests (all_reduce_perf and its siblings), parsed line by line into typed rows.

The table has changed over the years: `error` became `#wrong`, `root` and a bus id were added, `-I` and
bitwise checks add columns, and NCCL's own lines appear between rows and even inside them.  So a row is read
by the header's names, and from the right: the columns that may be empty are on the left.

Columns, titles and footers: nccl-tests src/util.cu and, before that file, src/common.cu and src/*.cu.  Pure,
and bounded in characters, rows and ranks.  `document` turns a log into a result.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from nodegauge_contract.values import NOT_READ, Int, Text, Unavailable

HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
MAX_CHARS = 1024 * 1024
MAX_ROWS = 16_384
MAX_DEVICES = 4096

ELEMENT_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "double", "float64"), 8),
}
"""By nccl-tests' name of the type (test_typenames in src/common.cu)."""

_DEVICE = re.compile(
    r"Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S{1,255})\s+device\s+\d+\s+\[([^\]]*)\]\s*(.*)"
)
LIBRARY = re.compile(r"NCCL version (\d+(?:\.\d+){1,3})[^\s+]*(?:\+cuda(\d+(?:\.\d+)*))?")
"""NCCL's version line (src/init.cc); logs of nccl-tests and of NCCL both have it."""
_TITLE = re.compile(r"nccl-tests version (\S{1,64})")
_CODE = re.compile(r"nccl-library=(\d{4,6})\b")
_PROGRAM = re.compile(r"\b([a-z_]{1,32}?)_perf(?:_mpi)?\b")
_NCCL_LINE = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ERROR)\b")
_PREAMBLE = re.compile(r"\s*(\d{1,19})\s+(\d{1,19})\s+([a-z]\w{0,15})\b(.*)")
_TAG = re.compile(
    r"\s{0,16}(?:\[pod/[^\]\s]{1,255}\] |\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) |"
    r"\s{0,8}\d{1,6}: {1,2}|\[\d+,\d+\](?:<std\w+>)?:\s?){1,4}"
)
"""Prefixes of `kubectl logs --prefix`, `kubectl logs --timestamps`, `srun --label` and `mpirun --tag-output`;
several of them where one runs inside the other."""
_CHOICE = re.compile(
    r"NCCL INFO (\w{1,32}): (\d{1,19}) Bytes -> Algo ([A-Za-z]\w{1,31}) proto ([A-Za-z]\w{1,31})"
)
"""NCCL's own line for a call (NCCL_DEBUG_SUBSYS=TUNING); releases before 2.24 print numbers there."""
MAX_CHOICES = 4096
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure .*|.*Test failure \S+:\d+.*")
_SUMMARY = re.compile(r"Out of bounds values\s*:\s*(\d{1,19})")


class NcclTestsError(ValueError):
    """A log that cannot be parsed; the message names the line and what was expected there."""


class Timing(Struct, frozen=True, kw_only=True):
    """One half of a row: microseconds of one call; `busbw` as printed (GB/s), with `unit` the value of its
    last printed digit; `wrong` elements, or in old logs the largest `error` (null if nothing was checked)."""

    us: float
    busbw: float
    unit: float
    wrong: Int = NOT_READ
    error: float | None = None


class Columns(Struct, frozen=True, kw_only=True):
    """A header: the names before the first time, and those of each half from its time on."""

    left: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    stamped: bool

    @classmethod
    def of(cls, line: str) -> Columns | None:
        """None if the line is not a header."""
        names = line.lstrip("# \t").split()
        if names[:2] != ["size", "count"] or "busbw" not in names:
            return None
        stamped = names[-1] == "timestamp"
        names = names[:-1] if stamped else names
        starts = [index for index, name in enumerate(names) if name in ("time", "cputime")]
        if not starts or len(starts) > 2:
            return None
        stops = [*starts[1:], len(names)]
        halves = tuple(tuple(names[a:b]) for a, b in zip(starts, stops, strict=True))
        return cls(left=tuple(names[: starts[0]]), halves=halves, stamped=stamped)

    @property
    def width(self) -> int:
        """Cells of all halves."""
        return sum(map(len, self.halves))

    def split(self, cells: list[str]) -> tuple[list[str], list[Timing | None]]:
        """The cells left of the times, and the times of each half, the last (in place) first.

        The list is empty if the cells do not end like a row; a blank half is None.
        """
        left = cells[:-2] if self.stamped else cells
        timings: list[Timing | None] = []
        for names in reversed(self.halves):
            timing = _timing(names, left[-len(names) :])
            left = left[: -len(names)] if timing is not None else left
            timings.append(timing)
        return left, timings if timings[0] is not None else []


def _timing(names: tuple[str, ...], cells: list[str]) -> Timing | None:
    """One half of a row; None if the cells do not match the names."""
    if len(cells) != len(names):
        return None
    by_name = dict(zip(names, cells, strict=True))
    us, busbw = _number(by_name.get("time", by_name.get("cputime", ""))), _number(by_name["busbw"])
    if us is None or busbw is None or us <= 0:
        return None
    wrong, error = _number(by_name.get("#wrong", "")), _number(by_name.get("error", ""))
    return Timing(
        us=us,
        busbw=busbw,
        unit=_unit(by_name["busbw"]),
        wrong=int(wrong) if wrong is not None else Unavailable("the data was not checked"),
        error=error,
    )


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,18}(\.\d{1,9})?(e[+-]?\d{1,3})?", text) else None


def _unit(text: str) -> float:
    """The value of the last digit of `451.03` (0.01) or of `4.7e+03` (100)."""
    digits, _, power = text.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


class Row(Struct, frozen=True, kw_only=True):
    """One line of a table: its line number, the size as printed, `count` elements of `element` bytes, and
    times.  `redop`, `root`: whether it names a reduction and a root rank."""

    line: int
    bytes: int
    count: int
    element: int
    redop: bool
    root: bool
    in_place: Timing | None = None
    out_of_place: Timing | None = None


class Table(Struct, kw_only=True):
    """One sweep of one collective: `program` if the log names it (all_reduce), `finished` once its average
    was printed, `wrong`: elements out of bounds according to its summary."""

    header: int
    program: str = ""
    rows: list[Row] = field(default_factory=list)
    finished: bool = False
    wrong: int | None = None


class Device(Struct, frozen=True, kw_only=True):
    """One rank of the block `Using devices`; `pci` in sysfs form if the log has all of it."""

    rank: int
    host: str
    pci: Text
    name: str


class Log(Struct, kw_only=True):
    """A whole log; `failure` is the line in which a test gave up, empty if none did.  `chosen`: algorithm and
    protocol by NCCL's name of the collective and the bytes that one rank contributes."""

    devices: list[Device] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    nccl: Text = NOT_READ
    cuda: Text = NOT_READ
    version: Text = NOT_READ
    failure: str = ""
    chosen: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks that took part."""
        return len(self.devices)

    @property
    def nodes(self) -> int:
        """Machines they ran on, by host name."""
        return len({device.host for device in self.devices})


def looks_like(text: str) -> bool:
    """Whether this may be such a log: a header of its table, or a line of its list of ranks."""
    return any(Columns.of(_untagged(line)) is not None or _DEVICE.search(line) for line in text.splitlines())


def parse(text: str) -> Log:
    """The whole log.  Raises `NcclTestsError`."""
    if len(text) > MAX_CHARS:
        raise NcclTestsError(f"more than {MAX_CHARS} characters; a log of nccl-tests is far smaller")
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.read(number, _untagged(line))
    return reader.log


def _untagged(line: str) -> str:
    """The line as nccl-tests wrote it."""
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

    def read(self, number: int, line: str) -> None:
        """One line of the log."""
        table_part = _NCCL_LINE.split(line)[0] if _NCCL_LINE.search(line) else line
        self._facts(line)
        if device := _DEVICE.search(line):
            self._device(number, device)
        elif (columns := Columns.of(line)) is not None:
            self._columns, self._partial = columns, None
            self.log.tables.append(Table(header=number, program=self._program))
        elif self._columns is not None and not line.lstrip().startswith("#"):
            self._row(number, table_part, whole=table_part is line)
        self._footer(line)

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

    def _device(self, number: int, match: re.Match[str]) -> None:
        device = Device(rank=int(match[1]), host=match[2], pci=_pci(match[3]), name=match[4].strip()[:128])
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
        if match := _PREAMBLE.match(line):
            rest = match[4].split()
            self._partial = _PartialRow(line=number, size=match[1], count=match[2], type=match[3], left=rest)
            left, halves = self._columns.split(rest)
            if not halves and whole and len(rest) >= self._columns.width:
                raise self._mismatch(number)
        elif self._partial is not None and whole:
            _, halves = self._columns.split(line.split())
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

    def _footer(self, line: str) -> None:
        if not self.log.tables:
            return
        table = self.log.tables[-1]
        if match := _SUMMARY.search(line):
            table.wrong = int(match[1])
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
