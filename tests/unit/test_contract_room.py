"""What a message goes without when it has no room, and what it never goes without."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_contract import (
    MESSAGE_LIMIT,
    Arm,
    Gpu,
    Growth,
    LoadGpu,
    LoadResult,
    NcclResult,
    Nics,
    Num,
    Port,
    RepeatedXid,
    Result,
    Sensor,
    Unavailable,
    WatchReport,
    Window,
    XidCount,
    Xids,
    decode,
    encode,
    encode_message,
)
from nodegauge_contract.wire.codec import DROP_ORDER, NEWEST
from support.busy import busy
from support.results import h100

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = [name for name, _ in DROP_ORDER]
TEXT = "signal 11: " + " ".join(f"frame {n * 7919 % 1000}" for n in range(20))
LOAD_TEXT = "error 719: " + " ".join(f"{n * 104_729 % 100_003}" for n in range(20))


def node() -> Result:
    """A node with everything that may be given up, and its neighbours that may not."""
    made = h100()
    gpus = [replace(gpu, serial="1", minor=1, module_id=1, cpus="0-7", memory_nodes="0") for gpu in made.gpus]
    window = Window(seconds=3.0, samples=13, growth=Growth())
    nics = Nics(names=["mlx5_0"], pci=["0000:0c:00.0"], to_gpu=[["PXB"] * 8], to_nic=[["X"]])
    return busy(
        replace(
            made,
            gpus=[replace(gpu, window=window) for gpu in gpus],
            nics=replace(nics, ports=[Port(nic=0, port=1)]),
            nccl=nccl(),
            load=LoadResult(gpus=[LoadGpu(index=0, message=LOAD_TEXT)]),
            watch=WatchReport(at=3_010_000, repeated=repeated(40)),
        )
    )


def repeated(count: int) -> list[RepeatedXid]:
    """So many Xids of earlier reports within hours after five weeks, oldest first, no two numbers alike."""
    times = [3_000_000 + n * 401 + n * n % 97 for n in range(count)]
    return [
        RepeatedXid(gpu=n * 5 % 8, code=n * 61 % 163 + 8, count=at % 41 + 1, first=at - at % 601, last=at)
        for n, at in enumerate(times)
    ]


def nccl() -> NcclResult:
    """A benchmark with a pair matrix, its slowest pair from 5 to 2, and more text than needed."""
    pairs: list[list[Num]] = [
        [-1 if i == j else 270.1 + 3.3 * i + 0.7 * j for j in range(8)] for i in range(8)
    ]
    pairs[5][2] = 11.5
    arms = [Arm(name="default", pairs=pairs), Arm(name="p2p-off", outcome="crashed", message=TEXT)]
    return NcclResult(ranks=8, message=TEXT, arms=arms)


def sent(result: Result, *, given_up: int) -> Result:
    """What arrives when just enough room is missing for so many members to be given up."""
    full = len(encode_message(result, limit=20_000))
    for limit in range(full, 0, -5):
        arrived = decode(encode_message(result, limit=limit))
        if len(arrived.omitted) >= given_up or arrived.problem is not None:
            return arrived
    raise AssertionError("nothing was given up")


def test_members_are_given_up_in_their_order_and_named() -> None:
    """One after the other, never more than has to be, and `omitted` says which."""
    full, seen = len(encode_message(node(), limit=20_000)), []
    for limit in range(full, full - 800, -9):
        arrived = decode(encode_message(node(), limit=limit))
        if arrived.problem is None:
            seen.append(arrived.omitted)
    assert all(omitted == NAMES[: len(omitted)] for omitted in seen)
    assert sorted(seen, key=len) == seen
    assert (seen[0], seen[-1]) == ([], NAMES)


def test_what_verdicts_and_labels_rest_on_stays() -> None:
    """Without all that may go, every reading that is judged is as it was."""
    whole = node()
    less = sent(whole, given_up=len(NAMES))
    assert (less.pairs, less.bus, less.host, less.system) == (
        whole.pairs,
        whole.bus,
        whole.host,
        whole.system,
    )
    assert replace(less.nics, to_nic=whole.nics.to_nic) == whole.nics
    gone = ("serial", "minor", "module_id", "cpus", "memory_nodes")
    assert any(gpu.xids.counts for gpu in whole.gpus)
    for before, after in zip(whole.gpus, less.gpus, strict=True):
        assert (after.xids.seen, after.xids.counts) == (before.xids.seen, [])
        after = replace(after, xids=before.xids)
        assert replace(after, **{name: getattr(before, name) for name in gone}) == before
        assert all(getattr(after, name) == Unavailable("not read") for name in gone)


def test_the_slowest_pair_stays_with_its_neighbours() -> None:
    """The rows of its two GPUs are there to compare it with, the others read as "not read"."""
    kept = sent(node(), given_up=len(NAMES)).nccl
    rows = kept.arms[0].pairs
    assert (rows[5], rows[2]) == (nccl().arms[0].pairs[5], nccl().arms[0].pairs[2])
    assert all(row == [Unavailable("not read")] * 8 for n, row in enumerate(rows) if n not in (2, 5))
    assert kept.arms[1].message == nccl().arms[1].message[:80]


def test_what_a_document_does_not_have_is_not_given_up() -> None:
    """`omitted` names members that are missing: a health result has no pairs to leave out."""
    arrived = sent(replace(node(), nccl=None, watch=None), given_up=4)
    assert arrived.omitted == ["nics.to_nic", "gpus.affinities", "sensors.others", "gpus.serials"]


def test_of_repeated_xids_the_oldest_go_first() -> None:
    """The newest stay for longer than what no verdict rests on, and the document's own for longer still."""
    whole = node()
    first, last = sent(whole, given_up=1), sent(whole, given_up=NAMES.index("watch.repeated") + 1)
    assert whole.watch is not None
    assert first.watch == replace(whole.watch, repeated=whole.watch.repeated[-NEWEST:])
    assert last.watch == WatchReport(at=whole.watch.at)
    assert [gpu.xids for gpu in last.gpus] == [gpu.xids for gpu in whole.gpus]


def test_sensors_that_tell_of_a_supply_stay() -> None:
    """Volts, watts, whatever raises an alarm or cannot be read, and all of a chip that has neither."""
    sensors = [
        Sensor(chip="psu", name="in1", value=12_000),
        Sensor(chip="psu", name="power1", value=9),
        Sensor(chip="psu", name="fan1", value=0, alarm=1),
        Sensor(chip="psu", name="curr1", value=Unavailable("sysfs: Input/output error")),
        Sensor(chip="psu", name="fan2", value=900, alarm=0),
        Sensor(chip="psu", name="temp1", value=35_000),
        Sensor(chip="board", name="fan1", value=1200),
    ]
    without = dict(DROP_ORDER)["sensors.others"]
    kept = without(Result(probe="health", sensors=sensors)).sensors
    assert kept == [*sensors[:4], sensors[6]]


@pytest.mark.parametrize(("codes", "omitted"), [(8, []), (32, ["gpus.xids.counts"])])
def test_many_xids_of_sixteen_busy_gpus_fit(codes: int, omitted: list[str]) -> None:
    """Eight kinds on every GPU whole; of as many as a document may hold, the codes at least."""
    dgx2 = decode((GOLDEN / "result-1.1-dgx2-busy.json").read_text())
    gpus = [replace(gpu, xids=xids(gpu.index, codes)) for gpu in dgx2.gpus]
    message = encode_message(replace(dgx2, gpus=gpus))
    arrived = decode(message)
    assert len(message) <= MESSAGE_LIMIT
    assert arrived.omitted[-1:] == omitted
    assert [gpu.xids.seen for gpu in arrived.gpus] == [gpu.xids.seen for gpu in gpus]
    assert omitted or arrived.gpus == gpus


def xids(gpu: int, codes: int) -> Xids:
    """So many kinds of Xids within an hour after five weeks, no two numbers alike."""
    seen = [(gpu * 37 + n * 61) % 163 + 8 for n in range(codes)]
    first = [3_000_000 + gpu * 401 % 3600 + n * 977 % 3600 for n in range(codes)]
    counts = [XidCount(count=at % 41 + 1, first=at, last=at + at % 601) for at in first]
    return Xids(registered=True, seen=seen, counts=counts)


def test_half_a_document_is_never_sent() -> None:
    """One byte less than the least that is whole: a problem in place of the document."""
    arrived = sent(node(), given_up=len(NAMES) + 1)
    assert (arrived.problem.kind, arrived.gpus, arrived.sensors) == ("result-too-large", [], [])


def test_a_document_that_fits_goes_whole() -> None:
    """Nothing is given up while there is room."""
    result = Result(probe="health", gpus=[Gpu(index=n, name="T4") for n in range(8)])
    assert decode(encode_message(result)) == result
    assert len(encode(result)) > 4096
