"""The output of one run of nccl-tests (all_reduce_perf and its siblings), parsed into typed rows.

NCCL's own lines appear between rows and even inside them.  `captures` finds the lines of a run, `table` reads
one row, `choices` what NCCL logged, `ranks` tells how many took part, `document` turns a log into results.

Titles and footers: nccl-tests src/util.cu and, before that file, src/common.cu and src/*.cu.  Pure, and
bounded in characters, rows and ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, field

from nodegauge_contract.nccl_tests.captures import DEVICE, FOOTER, PROGRAM, Line
from nodegauge_contract.nccl_tests.choices import Choices
from nodegauge_contract.nccl_tests.table import ELEMENT_BYTES, Columns, Row, Table, Timing
from nodegauge_contract.values import NOT_READ, Text, Unavailable

HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
MAX_ROWS = 16_384
MAX_DEVICES = 4096

_TITLE = re.compile(r"nccl-tests version (\S{1,64})")
_CODE = re.compile(r"nccl-library=(\d{4,6})\b")
_PROCESS = re.compile(r"nThread (\d{1,4}) nGpus (\d{1,4})\b")
_NCCL_LINE = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ERROR)\b")
_PREAMBLE = re.compile(r"\s*(\d{1,19})\s+(\d{1,19})\s+([a-z]\w{0,15})\b(.*)")
_PREFIXED = re.compile(rf"(?<![^\s>:|\]])(\d{{1,19}})\s+(\d{{1,19}})\s+({'|'.join(ELEMENT_BYTES)})\b(.*)")
"""A row behind a prefix that `captures` does not know."""
_RANK_TAG = re.compile(r"\[\d{1,6}\](?=\s)")
"""Some launchers print the rank at each write, also inside a row (NVIDIA/nccl issue 1453)."""
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
    """One run."""

    devices: list[Device] = field(default_factory=list)
    """Its ranks, as listed."""
    table: Table | None = None
    """None if the log ends before it."""
    program: str = ""
    """As it is named, without `_perf`; empty if it is not."""
    choices: Choices = field(default_factory=Choices)
    """What NCCL logged."""
    nccl: Text = NOT_READ
    """Version of NCCL."""
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
    mixed: int = 0
    """A line of another run in between, which nothing tells apart; 0 if there is none."""
    at: str = ""
    """The first time that stands in it."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Of the ranks that are listed."""
        return tuple(dict.fromkeys(device.host for device in self.devices))


def parse(lines: Sequence[Line]) -> Log:
    """The log of one run.  Raises `NcclTestsError`."""
    reader = _Reader()
    for line in lines:
        reader.read(line.number, line.text)
    written = [line.number for line in lines if line.text.strip()]
    reader.drop_cut_row(last=max(written, default=0))
    if isinstance(reader.log.choices.version, str):
        reader.log.nccl = reader.log.choices.version
    reader.log.at = next((line.at for line in lines if line.at), "")
    return reader.log


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
        self._rows = 0
        self._unreadable: NcclTestsError | None = None

    def read(self, number: int, line: str) -> None:
        """One line of the log.  A row that cannot be read is an error unless the log ends in it."""
        if self._unreadable is not None and line.strip():
            raise self._unreadable
        table_part = _NCCL_LINE.split(line)[0] if _NCCL_LINE.search(line) else line
        self._facts(line)
        if device := DEVICE.search(line):
            self._device(number, device)
        elif (columns := Columns.from_header(line)) is not None:
            self._columns, self._partial = columns, None
            self.log.table = Table(header=number)
        elif self._columns is not None and not line.lstrip().startswith("#"):
            self._row(number, _RANK_TAG.sub(" ", table_part), whole=table_part is line)
        elif self.log.devices and self.log.table is None and _ELIDED.fullmatch(line):
            self.log.elided = True
        self._footer(number, line)

    def drop_cut_row(self, *, last: int) -> None:
        """Forget the last row if the log ends in it, after the first of two halves."""
        rows = self.log.table.rows if self.log.table else []
        if (
            len(rows) > 1
            and rows[-1].line == last
            and rows[-1].out_of_place is None
            and rows[-2].out_of_place
        ):
            rows.pop()

    def _facts(self, line: str) -> None:
        log = self.log
        log.choices.feed(line)
        if match := _TITLE.search(line):
            log.version = match[1]
        if match := _CODE.search(line):
            log.nccl = _version(int(match[1]))
        if (match := PROGRAM.search(line)) and "concluded" not in line and log.table is None:
            log.program = match[1]
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
        first = self.log.devices[0] if self.log.devices else device
        if device == first:
            self.log.devices = []  # listed again
        elif (device.group, device.rank) == (first.group, first.rank):
            self.log.mixed = self.log.mixed or number
        self.log.devices.append(device)
        if len(self.log.devices) > MAX_DEVICES:
            raise NcclTestsError(f"line {number}: more than {MAX_DEVICES} ranks")

    def _row(self, number: int, line: str, *, whole: bool) -> None:
        """A row, a part of one, or another line."""
        assert self._columns is not None
        if match := _PREAMBLE.match(line) or _PREFIXED.search(line):
            rest = match[4].split()
            self._partial = _PartialRow(line=number, size=match[1], count=match[2], type=match[3], left=rest)
            left, halves = self._columns.split(rest, int(match[1]))
            if not halves and whole and len(rest) >= self._columns.width and not _FAILURE.search(line):
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
        assert self.log.table is not None
        self.log.table.rows.append(
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
        table = self.log.table
        if table is None:
            return
        if match := _SUMMARY.search(line):
            table.wrong, table.summary = int(match[1]), number
        if FOOTER in line:
            if table.finished:
                self.log.mixed = self.log.mixed or number
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
