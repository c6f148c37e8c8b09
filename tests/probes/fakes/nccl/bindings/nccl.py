"""A fake of the few names of nccl4py 0.6's generated bindings that the engine uses.

Collectives really compute, on the host, in the order in which ranks called within a group; see `cuda.core`
for what a fake of this kind shows and what it cannot.  Processes of one rank each meet in the folder that
their unique id names, by one file per call and rank; a rank that never comes keeps the others waiting.
"""

import ctypes
import os
import time
from array import array
from pathlib import Path

from cuda.core import GBPS, LATENCY_MS, TROUBLE, DynamicLibNotFoundError, Stream

FLOAT32, FLOAT64, SUM, MAX = 7, 8, 0, 2
TYPES = {FLOAT32: ("f", 4), FLOAT64: ("d", 8)}
_group: list | None = None
_ranks: dict = {}


class NCCLError(Exception):
    """nccl4py raises it with NCCL's name of the result."""


class Comm:
    def __init__(self, handle=0):
        self.handle = handle


class Others:
    """The processes of one communicator, if each has one rank."""

    here: "Others | None" = None

    def __init__(self, folder, size, rank):
        self.folder, self.size, self.rank, self._calls = Path(folder), size, rank, {}

    def exchange(self, data, ranks=None):
        ranks = tuple(range(self.size)) if ranks is None else ranks
        call = self._calls[ranks] = self._calls.get(ranks, 0) + 1
        path = self.folder / f"{'-'.join(map(str, ranks))}.{call}."
        draft = Path(f"{path}{self.rank}.draft")
        draft.write_bytes(data)
        draft.rename(f"{path}{self.rank}")
        return [self._wait(Path(f"{path}{rank}")) for rank in ranks]

    def _wait(self, path):
        while not path.exists():
            time.sleep(0.001)
        return path.read_bytes()


def get_version():
    if "no-libnccl" in TROUBLE:
        raise DynamicLibNotFoundError('Failure finding "libnccl.so.2": No such file: libnccl.so.2')
    return 23203


def get_last_error(comm):
    return "Cuda failure 2 'out of memory'" if "nccl-memory" in TROUBLE else "the network is down"


def join(number):
    if "nccl-init" in TROUBLE:
        raise NCCLError("SystemError (2): unhandled system error")
    if "nccl-memory" in TROUBLE:
        raise NCCLError("UnhandledCudaError (1): call to CUDA function failed")
    for rank in range(number):
        _ranks[0x1000 + rank] = rank
    return list(_ranks)


def join_others(folder, size, rank):
    Others.here = Others(folder, size, rank)
    Others.here.exchange(b"")
    [handle] = join(1)
    return handle


def group_start():
    global _group
    assert _group is None
    _group = []


def group_end():
    global _group
    calls, _group = _group, None
    assert sorted(_ranks[comm.handle] for _, comm, _, _, _ in calls) == sorted(_ranks.values()), (
        "not all ranks"
    )
    calls.sort(key=lambda call: _ranks[call[1].handle])
    streams = [Stream.everyone[call[2] - 1] for call in calls]
    if Others.here is None and len(calls) > 1 and os.environ.get("NCCL_P2P_DIRECT_DISABLE") != "1":
        raise NCCLError("UnhandledCudaError (1): the pool of another GPU is closed: illegal address")
    addresses, now = [call[3] for call in calls], max(stream.now for stream in streams)
    if (others := Others.here) is not None:
        inputs = others.exchange(ctypes.string_at(addresses[0][0], calls[0][4]))
        mine, make = addresses[0], ctypes.create_string_buffer
        kept = [(make(data, len(data) + 1), make(len(data) * others.size + 1)) for data in inputs]
        addresses = [(ctypes.addressof(one), ctypes.addressof(other)) for one, other in kept]
        addresses[others.rank] = mine
        now = max(float(each) for each in others.exchange(str(now).encode()))
    moved = calls[0][0](addresses)
    for stream in streams:
        stream.now = now + LATENCY_MS + moved / GBPS / 1e6


def _call(run, comm, stream, addresses, size):
    alone = _group is None
    if alone:
        group_start()
    _group.append((run, comm, stream, addresses, size))
    if alone:
        group_end()


def _read(address, count, kind="f", width=4):
    return array(kind, ctypes.string_at(address, count * width))


def _write(address, data):
    ctypes.memmove(address, data.tobytes(), len(data) * data.itemsize)


def all_reduce(sendbuff, recvbuff, count, datatype, op, comm, stream):
    kind, width = TYPES[datatype]
    assert (datatype, op) in {(FLOAT32, SUM), (FLOAT64, MAX)}

    def run(calls):
        inputs = [_read(send, count, kind, width) for send, _ in calls]
        total = array(kind, map(sum if op == SUM else max, zip(*inputs, strict=True)))
        for rank, (_, receive) in enumerate(calls):
            _write(receive, _spoilt(total, rank) if op == SUM else total)
        return count * width if op == SUM else 0

    _call(run, comm, stream, (sendbuff, recvbuff), count * width)


def all_gather(sendbuff, recvbuff, sendcount, datatype, comm, stream):
    assert datatype == FLOAT32

    def run(calls):
        blocks = [_read(send, sendcount) for send, _ in calls]
        for rank, (_, receive) in enumerate(calls):
            for index, block in enumerate(blocks):
                _write(receive + index * sendcount * 4, _spoilt(block, rank))
        return sendcount * 4 * len(calls)

    _call(run, comm, stream, (sendbuff, recvbuff), sendcount * 4)


def reduce_scatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream):
    assert (datatype, op) == (FLOAT32, SUM)

    def run(calls):
        inputs = [_read(send, recvcount * len(calls)) for send, _ in calls]
        total = array("f", map(sum, zip(*inputs, strict=True)))
        for rank, (_, receive) in enumerate(calls):
            _write(receive, _spoilt(total[rank * recvcount : (rank + 1) * recvcount], rank))
        return recvcount * 4 * len(calls)

    ranks = Others.here.size if Others.here else len(_ranks)
    _call(run, comm, stream, (sendbuff, recvbuff), recvcount * 4 * ranks)


def send(sendbuff, count, datatype, peer, comm, stream):
    _transfer(sendbuff, count, (Others.here.rank, peer), stream)


def recv(recvbuff, count, datatype, peer, comm, stream):
    _transfer(recvbuff, count, (peer, Others.here.rank), stream)


def _transfer(address, count, ranks, stream):
    sends = Others.here.rank == ranks[0]
    data, _ = Others.here.exchange(ctypes.string_at(address, count * 4) if sends else b"", ranks)
    if not sends:
        ctypes.memmove(address, data, len(data))
    Stream.everyone[stream - 1].now += LATENCY_MS + count * 4 / GBPS / 1e6


def _spoilt(data, rank):
    """The last element of rank 1, one off, where that is the trouble."""
    if "wrong-data" not in TROUBLE or rank != 1:
        return data
    spoilt = array("f", data)
    spoilt[-1] += 1
    return spoilt
