"""A fake of the few names of nccl4py 0.6's generated bindings that the engine uses.

Collectives really compute, on the host, in the order in which ranks called within a group; see `cuda.core`
for what a fake of this kind shows and what it cannot.
"""

from __future__ import annotations

import ctypes
from array import array

from cuda.core import GBPS, LATENCY_MS, TROUBLE, DynamicLibNotFoundError, Stream

FLOAT32, SUM = 7, 0
_group: list | None = None
_ranks: dict = {}


class NCCLError(Exception):
    """nccl4py raises it with NCCL's name of the result."""


class Comm:
    def __init__(self, handle=0):
        self.handle = handle


def get_version():
    if "no-libnccl" in TROUBLE:
        raise DynamicLibNotFoundError('Failure finding "libnccl.so.2": No such file: libnccl.so.2')
    return 23203


def get_last_error(comm):
    return "Cuda failure 2 'out of memory'" if "nccl-memory" in TROUBLE else "the network is down"


def join(number):
    """Handles of so many ranks."""
    if "nccl-init" in TROUBLE:
        raise NCCLError("SystemError (2): unhandled system error")
    if "nccl-memory" in TROUBLE:
        raise NCCLError("UnhandledCudaError (1): call to CUDA function failed")
    for rank in range(number):
        _ranks[0x1000 + rank] = rank
    return list(_ranks)


def group_start():
    global _group
    assert _group is None
    _group = []


def group_end():
    global _group
    calls, _group = _group, None
    assert sorted(_ranks[comm.handle] for _, comm, _, _ in calls) == sorted(_ranks.values()), "not all ranks"
    calls.sort(key=lambda call: _ranks[call[1].handle])
    moved = calls[0][0]([call[3] for call in calls])
    streams = [Stream.everyone[call[2] - 1] for call in calls]
    late = max(stream.now for stream in streams) + LATENCY_MS + moved / GBPS / 1e6
    for stream in streams:
        stream.now = late


def _read(address, count):
    return array("f", ctypes.string_at(address, count * 4))


def _write(address, data):
    ctypes.memmove(address, data.tobytes(), len(data) * 4)


def all_reduce(sendbuff, recvbuff, count, datatype, op, comm, stream):
    assert (datatype, op) == (FLOAT32, SUM)

    def run(calls):
        inputs = [_read(send, count) for send, _ in calls]
        total = array("f", map(sum, zip(*inputs, strict=True)))
        for rank, (_, receive) in enumerate(calls):
            _write(receive, _spoilt(total, rank))
        return count * 4

    _group.append((run, comm, stream, (sendbuff, recvbuff)))


def all_gather(sendbuff, recvbuff, sendcount, datatype, comm, stream):
    assert datatype == FLOAT32

    def run(calls):
        blocks = [_read(send, sendcount) for send, _ in calls]
        for rank, (_, receive) in enumerate(calls):
            for index, block in enumerate(blocks):
                _write(receive + index * sendcount * 4, _spoilt(block, rank))
        return sendcount * 4 * len(calls)

    _group.append((run, comm, stream, (sendbuff, recvbuff)))


def reduce_scatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream):
    assert (datatype, op) == (FLOAT32, SUM)

    def run(calls):
        inputs = [_read(send, recvcount * len(calls)) for send, _ in calls]
        total = array("f", map(sum, zip(*inputs, strict=True)))
        for rank, (_, receive) in enumerate(calls):
            _write(receive, _spoilt(total[rank * recvcount : (rank + 1) * recvcount], rank))
        return recvcount * 4 * len(calls)

    _group.append((run, comm, stream, (sendbuff, recvbuff)))


def _spoilt(data, rank):
    """The last element of rank 1, one off, where that is the trouble."""
    if "wrong-data" not in TROUBLE or rank != 1:
        return data
    spoilt = array("f", data)
    spoilt[-1] += 1
    return spoilt
