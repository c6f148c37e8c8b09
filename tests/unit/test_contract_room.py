"""What a message holds, what it goes without when it has no room, and what it never goes without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_contract import (
    MESSAGE_LIMIT,
    Arm,
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


# -- the largest runs


def golden(name: str) -> Result:
    """A golden document."""
    return decode((GOLDEN / f"{name}.json").read_text())


def unlike(value: Any, chance: Random, *, text: int = 0) -> Any:
    """The value with other numbers, no two alike, and messages of so many characters that do not compress."""
    if isinstance(value, dict):
        noise = " ".join(f"{chance.getrandbits(32):08x}" for _ in range(text // 9 + 1))[:text]
        changed = {name: unlike(inner, chance, text=text) for name, inner in value.items()}
        return changed | {name: noise for name in ("message",) if name in value and text}
    if isinstance(value, list):
        return [unlike(inner, chance, text=text) for inner in value]
    if isinstance(value, float):
        digits = len(str(value).partition(".")[2])
        return round(value * chance.uniform(0.9, 1.1), digits) if abs(value) < 1e6 else value
    return value + chance.randrange(value // 9) if type(value) is int and value > 99 else value


def worst(node: Result, part: Any, *, text: int = 0) -> Any:
    """A benchmark or a load run on this machine, as it compresses worst."""
    return decode(json.dumps(json.loads(encode(node)) | unlike(part, Random(4), text=text)))


def nccl_run(name: str, *, text: int = 0) -> Result:
    """A golden benchmark in which no two numbers are alike."""
    node = golden(f"result-1.2-{name}")
    result: Result = worst(node, {"bench": json.loads(encode(node))["bench"]}, text=text)
    return result


def under_load(name: str, *, text: int = 0) -> Result:
    """A recorded machine under load with six supplies; the numbers of its GPUs are those of a golden run."""
    node = golden(f"result-1.2-{name}")
    load = json.loads(encode(golden("result-1.4-h100-load-slow")))["load"]
    reasons = [{"bit": bit, "samples": 117, "longest": 113, "first_ms": 23_456} for bit in (0x4, 0x20, 0x40)]
    gpus = [
        load["gpus"][gpu.index % len(load["gpus"])] | {"index": gpu.index, "reasons": reasons}
        for gpu in node.gpus
    ]
    one = {"chip": "pmbus", "name": "in", "label": "vout1", "samples": 60}
    volts = {"idle": 12_345, "loaded": 11_987, "min": 11_876, "max": 12_456}
    sensors = [one | volts | {"name": f"in{n}"} for n in range(18)]
    result: Result = worst(
        node, {"load": load | {"gpus": gpus, "sensors": sensors}, "bench": None}, text=text
    )
    return result


@pytest.mark.parametrize("whole", [nccl_run, under_load])
@pytest.mark.parametrize("name", ["h100-nccl", "dgx2-nccl"])
def test_a_message_holds_a_whole_run(name: str, whole: Any) -> None:
    """Every arm, cell, pair and GPU, every number different: nothing is given up."""
    result = whole(name)
    message = encode_message(result)
    assert len(message) < (0.8 if whole is nccl_run else 0.9) * MESSAGE_LIMIT
    assert decode(message) == result


@pytest.mark.parametrize("name", ["h100-nccl", "dgx2-nccl"])
def test_long_messages_cost_no_measurement(name: str) -> None:
    """240 characters of every arm or GPU that do not compress: cells and numbers are still whole."""
    sent = nccl_run(name, text=240)
    arrived = decode(encode_message(sent))
    assert arrived.problem is None
    assert set(arrived.omitted) <= {"gpus.affinities", "gpus.serials", "bench.pairs", "bench.messages"}
    assert [arm.cells for arm in arrived.nccl.arms] == [arm.cells for arm in sent.nccl.arms]
    sent = under_load(name, text=240)
    arrived = decode(encode_message(sent))
    for gpu, whole in zip(arrived.load.gpus, sent.load.gpus, strict=True):
        assert replace(gpu, message=whole.message) == whole
        assert whole.message.startswith(gpu.message[:40])


# -- what is given up


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


def shortened(result: Result) -> Iterator[Result]:
    """What arrives with room for all, then each time with a byte less than what came before it needed."""
    limit, arrived = 20_000, result
    while arrived.problem is None:
        message = encode_message(result, limit=limit)
        limit, arrived = len(message) - 1, decode(message)
        yield arrived


@cache
def shorter() -> list[Result]:
    """`shortened` of the node that has everything."""
    return list(shortened(node()))


def short_of(given_up: int) -> Result:
    """The first of them in which so many members were given up."""
    return next(one for one in shorter() if len(one.omitted) >= given_up)


def test_members_are_given_up_in_their_order_and_named() -> None:
    """One after the other, never more than has to be, and `omitted` says which; half a document is never
    sent."""
    *whole, arrived = shorter()
    for before, after in pairwise(one.omitted for one in whole):
        assert (after, len(after) > len(before)) == (NAMES[: len(after)], True)
    assert (whole[0].omitted, whole[-1].omitted) == ([], NAMES)
    assert (arrived.problem.kind, arrived.gpus, arrived.sensors) == ("result-too-large", [], [])


def test_what_verdicts_and_labels_rest_on_stays() -> None:
    """Without all that may go, every reading that is judged is as it was."""
    whole = node()
    less = short_of(len(NAMES))
    for name in ("pairs", "bus", "host", "system"):
        assert getattr(less, name) == getattr(whole, name)
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
    kept = short_of(len(NAMES)).nccl
    rows = kept.arms[0].pairs
    assert (rows[5], rows[2]) == (nccl().arms[0].pairs[5], nccl().arms[0].pairs[2])
    assert all(row == [Unavailable("not read")] * 8 for n, row in enumerate(rows) if n not in (2, 5))
    assert kept.arms[1].message == nccl().arms[1].message[:80]


def test_what_a_document_does_not_have_is_not_given_up() -> None:
    """`omitted` names members that are missing: a health result has no pairs to leave out."""
    omitted = [one.omitted for one in shortened(replace(node(), nccl=None, watch=None))]
    assert ["nics.to_nic", "gpus.affinities", "sensors.others", "gpus.serials"] in omitted
    assert not any(name.startswith(("bench", "watch")) for names in omitted for name in names)


def test_of_repeated_xids_the_oldest_go_first() -> None:
    """The newest stay for longer than what no verdict rests on, and the document's own for longer still."""
    whole = node()
    first, last = short_of(1), short_of(NAMES.index("watch.repeated") + 1)
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
