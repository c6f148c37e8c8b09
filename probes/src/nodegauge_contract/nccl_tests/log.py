"""What nccl-tests prints (all_reduce_perf and its kin), line by line into typed rows.

The table has changed over the years: `error` became `#wrong`, `root` and a bus id came, `-I` and bitwise
checks add columns, NCCL's own lines stand between its rows and even inside them.  So rows are read by the
header's names, and from the right: what may be empty or missing stands on the left.

Columns, titles and footers: nccl-tests src/util.cu and, before that file, src/common.cu and src/*.cu.  Pure,
and bounded in characters, rows and ranks.  What a log means as a result is `nccltests`' business.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from nodegauge_contract.nccl_tests.columns import Columns, Timing
from nodegauge_contract.values import NOT_READ, Text, Unavailable

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
"""NCCL's own line about itself (src/init.cc), which stands in logs of nccl-tests and of NCCL alike."""
_TITLE = re.compile(r"nccl-tests version (\S{1,64})")
_CODE = re.compile(r"nccl-library=(\d{4,6})\b")
_PROGRAM = re.compile(r"\b([a-z_]{1,32}?)_perf(?:_mpi)?\b")
_NCCL_SAYS = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ERROR)\b")
_PREAMBLE = re.compile(r"\s*(\d{1,19})\s+(\d{1,19})\s+([a-z]\w{0,15})\b(.*)")
_TAG = re.compile(
    r"\s{0,16}(?:\[pod/[^\]\s]{1,255}\] |\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) |"
    r"\s{0,8}\d{1,6}: {1,2}|\[\d+,\d+\](?:<std\w+>)?:\s?){1,4}"
)
"""What stands before each line by `kubectl logs --prefix`, by its `--timestamps`, by `srun --label`, and by
`mpirun --tag-output`; several of them where one runs inside the other."""
_CHOICE = re.compile(
    r"NCCL INFO (\w{1,32}): (\d{1,19}) Bytes -> Algo ([A-Za-z]\w{1,31}) proto ([A-Za-z]\w{1,31})"
)
"""NCCL's own line for a call (NCCL_DEBUG_SUBSYS=TUNING); releases before 2.24 print numbers there."""
MAX_CHOICES = 4096
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure .*|.*Test failure \S+:\d+.*")
_SUMMARY = re.compile(r"Out of bounds values\s*:\s*(\d{1,19})")


class NcclTestsError(ValueError):
    """A log that cannot be read; the message names the line and what was expected there."""


class Row(Struct, frozen=True, kw_only=True):
    """One line of a table: where it stands, the size as printed, elements of `element` bytes, and times.
    `redop`, `root`: whether it names a reduction and a root rank."""

    line: int
    bytes: int
    count: int
    element: int
    redop: bool
    root: bool
    in_place: Timing | None = None
    out_of_place: Timing | None = None


class Table(Struct, kw_only=True):
    """One sweep of one collective: `program` where the log names it (all_reduce), `finished` once its average
    was printed, `wrong`: elements out of bounds by its summary."""

    header: int
    program: str = ""
    rows: list[Row] = field(default_factory=list)
    finished: bool = False
    wrong: int | None = None


class Device(Struct, frozen=True, kw_only=True):
    """One rank of the block `Using devices`; `pci` in sysfs form where the log has all of it."""

    rank: int
    host: str
    pci: Text
    name: str


class Log(Struct, kw_only=True):
    """All that a log says; `failure` is the line in which a test gave up, empty where none did.  `chosen`: by
    NCCL's name of the collective and the bytes that one rank puts in, algorithm and protocol."""

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
    """Everything in a log.  Raises `NcclTestsError`."""
    if len(text) > MAX_CHARS:
        raise NcclTestsError(f"more than {MAX_CHARS} characters; a log of nccl-tests is far smaller")
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, _untagged(line))
    return reader.log


def _untagged(line: str) -> str:
    """The line as nccl-tests wrote it."""
    tag = _TAG.match(line)
    return line[tag.end() :] if tag is not None else line


class _Open(Struct, frozen=True, kw_only=True):
    """The left part of a row, whose times may come on a later line."""

    line: int
    size: str
    count: str
    type: str
    left: list[str]


class _Reader:
    """Takes line after line; `log` is what was said so far."""

    def __init__(self) -> None:
        self.log = Log()
        self._columns: Columns | None = None
        self._open: _Open | None = None
        self._program = ""
        self._listed: list[Device] = []
        self._rows = 0

    def take(self, number: int, line: str) -> None:
        """One line of the log."""
        ours = _NCCL_SAYS.split(line)[0] if _NCCL_SAYS.search(line) else line
        self._facts(line)
        if device := _DEVICE.search(line):
            self._device(number, device)
        elif (columns := Columns.of(line)) is not None:
            self._columns, self._open = columns, None
            self.log.tables.append(Table(header=number, program=self._program))
        elif self._columns is not None and not line.lstrip().startswith("#"):
            self._row(number, ours, whole=ours is line)
        self._footer(line)

    def _facts(self, line: str) -> None:
        log = self.log
        if found := LIBRARY.search(line):
            log.nccl, log.cuda = found[1], found[2] or log.cuda
        if found := _TITLE.search(line):
            log.version = found[1]
        if (found := _CODE.search(line)) and not isinstance(log.nccl, str):
            log.nccl = _version(int(found[1]))
        if (found := _PROGRAM.search(line)) and "concluded" not in line:
            self._program = found[1]
        if (found := _CHOICE.search(line)) and len(log.chosen) < MAX_CHOICES:
            log.chosen[found[1], int(found[2])] = (found[3].upper(), found[4].upper())
        if (found := _FAILURE.search(line)) and not log.failure:
            log.failure = " ".join(found[0].split())[:512]

    def _device(self, number: int, found: re.Match[str]) -> None:
        device = Device(rank=int(found[1]), host=found[2], pci=_pci(found[3]), name=found[4].strip()[:128])
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
                f"line {number}: rank {device.rank} is another GPU or host than in the table above; "
                "judge the logs of different machines one by one"
            )

    def _row(self, number: int, line: str, *, whole: bool) -> None:
        """A row, a part of one, or a line that is none."""
        assert self._columns is not None
        if found := _PREAMBLE.match(line):
            rest = found[4].split()
            self._open = _Open(line=number, size=found[1], count=found[2], type=found[3], left=rest)
            left, halves = self._columns.split(rest)
            if not halves and whole and len(rest) >= self._columns.width:
                raise self._unlike(number)
        elif self._open is not None and whole:
            _, halves = self._columns.split(line.split())
            left = self._open.left
        else:
            return
        if halves:
            self._add(self._open, left=left, halves=halves)
            self._open = None

    def _unlike(self, number: int) -> NcclTestsError:
        assert self._columns is not None
        wanted = " ".join(" ".join(names) for names in self._columns.halves)
        return NcclTestsError(f"line {number}: expected the columns `{wanted}` at the end of the row")

    def _add(self, row: _Open, *, left: list[str], halves: list[Timing | None]) -> None:
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
        if found := _SUMMARY.search(line):
            table.wrong = int(found[1])
        if "Avg bus bandwidth" in line:
            table.finished = True
            self._columns = self._open = None


def _pci(text: str) -> Text:
    """`0000:b4:00` as `0000:b4:00.0`; old forms give the bus alone, and some of them 0x00 for every GPU."""
    if found := re.fullmatch(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})", text.strip()):
        return f"{found[1]}:{found[2]}:{found[3]}.0".lower()
    return Unavailable(f"the log gives {text.strip()[:32]} alone")


def _version(code: int) -> str:
    """`2.30.3` of 23003, `2.8.4` of 2804 (NCCL_VERSION of nccl.h changed its base with 2.9)."""
    base = 10_000 if code >= 10_000 else 1_000
    return f"{code // base}.{code % base // 100}.{code % 100}"
