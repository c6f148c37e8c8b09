"""Programs that print what nccl-tests prints, by its own sources (src/util.cu, src/common.cu before 2.13);
times are computed, at 10 GB/s and 20 us a call."""

import sys
from itertools import zip_longest
from pathlib import Path
from shlex import quote

from nodegauge_contract.nccl import busbw_factor

NAMES = ("all_reduce", "all_gather", "reduce_scatter")
PROGRAM = """import sys
told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
low, high, factor, ranks = (int(told[name]) for name in ("-b", "-e", "-f", "-g"))
collective, old = {collective!r}, {old!r}
print("# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003")
print("# Using devices")
for rank in range(ranks):
    print(f"#  Rank {{rank}} Group 0 Pid 12574 on box device {{rank}} [0000:{{rank:02x}}:00] NVIDIA H100")
half = "time algbw busbw " + ("error" if old else "#wrong")
redop = "redop root" if not old else "redop" if collective != "all_gather" else ""
print(f"#  size  count  type  {{redop}}  {{half}}  {{half}}")
while low <= high:
    us = 20 + low / 1e4
    share = (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks
    count = low // 4 // (1 if collective == "all_reduce" else ranks)
    redop = "none" if collective == "all_gather" else "sum"
    left = redop if old and redop == "sum" else "" if old else f"{{redop}} -1"
    speeds = [(time, low / time / 1e3) for time in (us + 5, us)]
    halves = [f"{{time:.2f}} {{algbw:.2f}} {{algbw * share:.2f}} 0" for time, algbw in speeds]
    print(f"{{low:12}} {{count:12}} float {{left}} {{' '.join(halves)}}")
    low *= factor
print("# Out of bounds values : 0 OK")
print("# Avg bus bandwidth    : 1")
"""


HEAD = "#  size  count  type  redop  root  time algbw busbw #wrong  time algbw busbw #wrong"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 15.7\n"
SIZES = tuple(2**power for power in range(20, 31))
PROCESS = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor)\n# Using devices\n"


def row(size: int, *times: float, ranks: int = 2, collective: str = "all_reduce", wrong: str = "0") -> str:
    redop = "none -1" if collective == "all_gather" else "sum -1"
    share = 1 if collective == "all_reduce" else ranks
    count = size // 4 // share
    size = count * 4 * share  # as nccl-tests rounds it
    algbws = [size / us / 1e3 for us in times]
    halves = [
        f"{us:.2f}  {algbw:.2f}  {algbw * busbw_factor(collective, ranks):.2f}  {wrong}"
        for us, algbw in zip(times, algbws, strict=True)
    ]
    return f"  {size}  {count}  float  {redop}  {'  '.join(halves)}"


def tagged(*processes: tuple[str, str]) -> str:
    """Lines of several processes in turn, each behind its prefix."""
    streams = [[f"{prefix}{line}" for line in text.splitlines()] for prefix, text in processes]
    return "\n".join(line for lines in zip_longest(*streams) for line in lines if line is not None)


def devices(*ranks: int, host: str = "box", gpu: str = "NVIDIA H100 80GB HBM3") -> str:
    lines = [f"#  Rank {n:2} Group  0 Pid {9 + n} on {host} device {n % 8} [0x{n:02x}] {gpu}" for n in ranks]
    return "".join(f"{line}\n" for line in lines)


def table(
    ranks: int,
    *,
    collective: str = "all_reduce",
    gbps: float = 100.0,
    sizes: tuple[int, ...] = SIZES,
    wrong: str = "0",
) -> str:
    algbw = gbps / busbw_factor(collective, ranks)
    rows = [
        row(size, us + 1, us, ranks=ranks, collective=collective, wrong=wrong)
        for size in sizes
        for us in [19 + size / algbw / 1e3]
    ]
    return "\n".join([HEAD, *rows, FOOT])


def installed(folder: Path, *, names: tuple[str, ...] = NAMES, old: bool = False) -> Path:
    for name in names:
        program = folder / f"{name}.py"
        program.write_text(PROGRAM.format(collective=name, old=old))
        # Not by its own first line, which cannot name a Python whose path has a space.
        scripted(folder, name, f'#!/bin/sh\nexec {quote(sys.executable)} {quote(str(program))} "$@"\n')
    return folder


def scripted(folder: Path, name: str, text: str) -> None:
    path = folder / f"{name}_perf"
    path.write_text(text)
    path.chmod(0o755)
