"""Which lines of a text are of one run of nccl-tests: a log may hold many, of several hosts and mixed.

Launchers put a prefix before each line.  If headers of tables have different prefixes, several processes
wrote at the same time, and each prefix is a stream of its own.  In a stream a run begins with the lines that
nccl-tests prints first, and has at most one table.  `log` reads one run.

Pure, and bounded in characters and runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from msgspec import Struct

from nodegauge_contract.nccl_tests.table import Columns, header_at

MAX_CHARS = 1024 * 1024
MAX_RUNS = 256
MAX_STREAMS = 64

DEVICE = re.compile(
    r"Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S{1,255})\s+device\s+\d+\s+\[([^\]]*)\]\s*(.*)"
)
PROGRAM = re.compile(r"\b([a-z_]{1,32}?)_perf(?:_mpi)?\b")
FOOTER = "Avg bus bandwidth"
_FIRST = re.compile(r"nccl-tests version |Collective test starting|\bnThread \d|# *Using devices")
"""Lines that nccl-tests prints before its list of ranks (src/common.cu)."""
_SETS = re.compile(r"(?<!\w)NCCL_[A-Z0-9_]{1,64}=")
_EXPORTS = re.compile(r"[+$#\s]{0,8}export\s+NCCL_")
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_TIME = re.compile(
    r"(?<![\w.:])\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?|"
    r"(?<!\w)(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: [A-Z]{3,4})?(?: \d{4})?"
)
_TAG = re.compile(
    r"\s{0,16}(?:\[pod/[^\]\s]{1,255}\] |\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) |"
    r"\s{0,8}\d{1,6}: {1,2}|\[[^\]\s,]{1,255},\d+\](?:<std\w+>)?:\s?){1,4}"
)
"""Prefixes of `kubectl logs --prefix`, `kubectl logs --timestamps`, `srun --label` and `mpirun --tag-output`;
several of them where one runs inside the other."""
_PIPE = re.compile(r"<std\w{2,8}>")


class Line(Struct, frozen=True):
    """A line of the text: its number, from 1, and what the program wrote there."""

    number: int
    text: str
    at: str = ""
    """The time that it names; empty for none."""


def looks_like(text: str) -> bool:
    """Whether this may be such a log: a header of its table, or a line of its list of ranks."""
    return any(
        Columns.from_header(_untagged(line)) is not None or DEVICE.search(line) for line in text.splitlines()
    )


def captures(text: str) -> list[list[Line]]:
    """The lines of each run, in the order of their first lines; at most `MAX_RUNS`.

    What stands before the first run belongs to it, what stands between two to the one before: it may be its
    failure.
    """
    runs = [run for stream in _streams(text.splitlines()) for run in _runs(stream) if run]
    return sorted(runs, key=lambda run: run[0].number)[:MAX_RUNS]


def _streams(lines: Sequence[str]) -> Iterable[list[Line]]:
    """The lines by the process that wrote them, as far as prefixes tell."""
    plain = [_COLOUR.sub("", line) for line in lines]
    starts = {number: start for number, line in enumerate(plain) if (start := header_at(line)) is not None}
    prefixes = list(dict.fromkeys(_prefix(plain[number][:start]) for number, start in starts.items()))
    streams: dict[str, list[Line]] = {prefix: [] for prefix in prefixes[:MAX_STREAMS]} or {"": []}
    nearest = latest = next(iter(streams))
    for number, line in enumerate(plain):
        if number in starts and (prefix := _prefix(line[: starts[number]])) in streams:
            latest = prefix
        if len(streams) > 1:
            nearest = _nearest(streams, _prefix(line), latest)
        time = _TIME.search(line)
        streams[nearest].append(Line(number + 1, _untagged(line), time[0] if time else ""))
    return streams.values()


def _nearest(prefixes: Iterable[str], line: str, latest: str) -> str:
    """The prefix that the line has, else the most like it, else the `latest` whose table began."""
    return max(
        prefixes, key=lambda prefix: (line.startswith(prefix), _common(prefix, line), prefix == latest)
    )


def _prefix(text: str) -> str:
    """What tells a process: without the time, the pipe, and the sign of a comment."""
    return " ".join(_PIPE.sub("", _TIME.sub("", text)).replace("#", " ").split())


def _common(prefix: str, text: str) -> int:
    """How many characters the two begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prefix, text, strict=False)))


def _untagged(line: str) -> str:
    """The line as nccl-tests wrote it."""
    line = _COLOUR.sub("", line)
    tag = _TAG.match(line)
    return line[tag.end() :] if tag is not None else line


def _runs(stream: Iterable[Line]) -> Iterator[list[Line]]:
    run: list[Line] = []
    waiting: list[Line] = []  # from a command on, until a line tells whether it began a run
    exported: list[Line] = []  # by a shell that prints what it does: for all runs below
    listed = table = False
    for line in stream:
        header = Columns.from_header(line.text) is not None
        device = DEVICE.search(line.text) is not None
        first = _FIRST.search(line.text) is not None
        if (table and (first or device or header)) or (listed and first):
            yield run
            run, waiting, listed, table = [*waiting[:1], *exported, *waiting[1:]], [], False, False
        if _EXPORTS.match(line.text):
            exported.append(line)
        command = _SETS.search(line.text) or (PROGRAM.search(line.text) and "concluded" not in line.text)
        (waiting if table and (waiting or command) else run).append(line)
        if FOOTER in line.text:
            run, waiting = run + waiting, []
        listed, table = listed or device, table or header
    yield run + waiting
