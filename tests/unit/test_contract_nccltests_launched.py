"""Logs of nccl-tests as launchers hand them on, and with NCCL's own lines in them."""

from __future__ import annotations

import pytest

from nodegauge_contract.nccl_tests.document import result
from nodegauge_contract.nccl_tests.log import looks_like

DEVICES = """\
# Using devices
#  Rank  0 Group  0 Pid    127 on       box device  0 [0000:b4:00] NVIDIA H100 NVL
#  Rank  1 Group  0 Pid    127 on       box device  1 [0001:b5:00] NVIDIA H100 NVL
"""
HEAD = "#   size   count  type  redop  root  time algbw busbw #wrong  time algbw busbw #wrong"
ROW = "  1048576  262144  float  sum  -1  100.0  10.49  10.49  0  50.0  20.97  20.97  0"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 15.7\n#\n"


def log(*lines: str, head: str = HEAD, foot: str = FOOT) -> str:
    """A log of two ranks with these lines as its table."""
    return "\n".join([DEVICES, head, *lines, foot])


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "        [1,0]<stdout>: ",
        "0: ",
        " 3:  ",
        "2026-05-05T06:16:47.123456789Z ",
        "2026-05-05T06:16:47+02:00 [1,0]<stdout>:",
        "[prterun-box-4711@1,0]<stdout>: ",
        "allreduce-1  | ",
        "Nov 22 16:47:45 box all_reduce[127]: ",
        "\x1b[32m[1,0]<stdout>:\x1b[0m",
        "[pod/allreduce-launcher-x7k2p/mpi] 2026-05-05T06:16:47.1Z [1,0]<stdout>:",
    ],
)
def test_what_launchers_put_before_each_line_is_left_aside(tag: str) -> None:
    """mpirun, srun --label, kubectl logs with --timestamps and --prefix, docker compose, syslog, colours."""
    plain = log(ROW)
    tagged = "".join(f"{tag}{line}\n" for line in plain.splitlines())
    assert looks_like(tagged)
    assert result(tagged) == result(plain)
    assert result(tagged.replace("\n", "\r\n")) == result(plain)


def test_what_nccl_chose_is_taken_from_its_own_lines() -> None:
    """Rows of expectations depend on NVLS: a log with NCCL_DEBUG_SUBSYS=TUNING can be graded by them."""
    given = "box:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}"
    other = "box:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}"
    nccl = result(log(other, given, ROW)).nccl
    assert [(cell.algorithm, cell.protocol) for cell in nccl.arms[0].cells] == [("NVLS", "SIMPLE")]
