"""What to measure: arms, cells and sizes, and what is left out for lack of time or memory.

One budget for the whole run.  It cuts sizes, never arms: a small number about every configuration says more
than a large one about one.  Cells stand in the order of their worth, so that what a child has no time for is
what is missed least; the first cell of an arm always stays.

Seconds are guessed pessimistically from bandwidths that healthy machines exceed; they decide what is left
out before it begins, and the child's own clock (`Order.budget_ms`) decides the rest.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import ArmName, Collective
from nodegauge_probes.nccl.protocol import CellOrder, Order

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER

BUDGET_S = 60.0
STARTUP_COUNTED_S = 10.0
"""Of each arm's start so much counts towards the budget: a cold one is the image's and the driver's."""
TEARDOWN_S = 1.0
RESERVED_S = {ArmName.NVLS_OFF: 3.0, ArmName.P2P_OFF: 5.0, ArmName.DEFAULT: 8.0}
"""Of measuring, kept for an arm that is still to come."""
LEAST_S, MOST_S = 1.0, 30.0
"""Of measuring, whatever the budget says; the most leaves a child room below its limit of 45 s."""

OWN_MEMORY = 2 * GIB
"""Of each GPU, for contexts, NCCL's own buffers and NVLS."""

NVLS_FROM_CAPABILITY, NVLS_FROM_RANKS = (9, 0), 2
"""SHARP in NVSwitch: from Hopper on.  Published curves use it from 5 GPUs (H200) or 6 (B200) on, but NCCL
makes its channels from 2 on (3 before 2.30; src/transport/nvls.cc), and where that fails nothing starts, on
the 4 GPUs of a GB200 tray as well."""

FEW_CALLS = 5

CELLS: dict[ArmName, tuple[CellOrder, ...]] = {
    ArmName.DEFAULT: (
        CellOrder(collective=AR, bytes=GIB),
        CellOrder(collective=AG, bytes=GIB),
        CellOrder(collective=RS, bytes=GIB),
        CellOrder(collective=AR, bytes=64 * KIB, check=True),
        CellOrder(collective=AR, bytes=256 * MIB, check=True),
        CellOrder(collective=AR, bytes=8),
        CellOrder(collective=AG, bytes=64 * KIB, check=True),
        CellOrder(collective=RS, bytes=64 * KIB, check=True),
        CellOrder(collective=AR, bytes=64 * MIB, check=True),
        CellOrder(collective=AR, bytes=4 * KIB),
    ),
    ArmName.NVLS_OFF: (CellOrder(collective=AR, bytes=GIB),),
    ArmName.P2P_OFF: (
        CellOrder(collective=AR, bytes=256 * MIB, calls=FEW_CALLS, check=True),
        CellOrder(collective=AG, bytes=256 * MIB, calls=FEW_CALLS, check=True),
        CellOrder(collective=AR, bytes=64 * KIB, calls=FEW_CALLS, check=True),
        CellOrder(collective=AR, bytes=64 * MIB, calls=FEW_CALLS, check=True),
    ),
}

PAIR_BYTES, PAIR_COPIES = (256 * MIB, 64 * MIB, 16 * MIB), 5
PAIR_SHARE = 1 / 3
"""Of an arm's time, at most."""

GBPS = {ArmName.DEFAULT: (20.0, 3.0), ArmName.NVLS_OFF: (20.0, 3.0), ArmName.P2P_OFF: (2.0, 2.0)}
"""GB/s that every machine reaches, with and without NVLink."""
PAIR_GBPS = (20.0, 5.0)
CHECK_S = 0.3


class Machine(Struct, frozen=True, kw_only=True):
    """What the plan depends on.  `capability`: compute capability, None where it is unknown; `switched`: its
    NVLinks lead to switches; `linked`: it has NVLinks; `free_bytes`: of the GPU with least, None: unknown."""

    ranks: int
    capability: tuple[int, int] | None = None
    switched: bool = False
    linked: bool = False
    free_bytes: int | None = None


class Spent(Struct, frozen=True, kw_only=True):
    """Seconds of one arm that is over."""

    startup: float
    measure: float
    teardown: float

    @property
    def counted(self) -> float:
        return min(self.startup, STARTUP_COUNTED_S) + self.measure + self.teardown


def arms(machine: Machine) -> tuple[ArmName, ...]:
    """The configurations worth measuring, in the order of their worth."""
    capability = machine.capability or (0, 0)
    sharp = machine.switched and capability >= NVLS_FROM_CAPABILITY and machine.ranks >= NVLS_FROM_RANKS
    return (ArmName.DEFAULT, ArmName.P2P_OFF, *((ArmName.NVLS_OFF,) if sharp else ()))


def allowance(budget: float, *, spent: Sequence[Spent], later: Sequence[ArmName]) -> float:
    """Seconds that the next arm may measure, after those that are over and with those still to come."""
    gone = sum(arm.counted for arm in spent)
    ahead = sum(STARTUP_COUNTED_S + TEARDOWN_S + RESERVED_S[arm] for arm in later)
    return min(max(budget - gone - ahead - STARTUP_COUNTED_S - TEARDOWN_S, LEAST_S), MOST_S)


def order(
    arm: ArmName, machine: Machine, *, uuids: Sequence[str], seconds: float
) -> tuple[Order, tuple[str, ...]]:
    """What the child of `arm` shall do in `seconds` of measuring, and what it is not asked for."""
    pairs_bytes = _pairs_bytes(machine, seconds * PAIR_SHARE) if arm is ArmName.DEFAULT else 0
    left = seconds - _pairs_seconds(machine, pairs_bytes)
    wanted = CELLS[arm]
    fitting = dict.fromkeys(_fitting(cell, machine) for cell in wanted)
    kept = _affordable([(cell, _seconds(cell, arm, machine)) for cell in fitting], left)
    cut = [name(cell) for cell in wanted if cell not in kept]
    if arm is ArmName.DEFAULT and pairs_bytes != PAIR_BYTES[0]:
        cut.append(f"pairs/{PAIR_BYTES[0]}")
    told = Order(
        arm=arm,
        uuids=tuple(uuids),
        cells=tuple(kept),
        budget_ms=round(max(left, LEAST_S) * 1000),
        pairs_bytes=pairs_bytes,
        pair_copies=PAIR_COPIES,
    )
    return told, tuple(in_arm(arm, each) for each in cut)


def name(cell: CellOrder) -> str:
    """As `NcclResult.cut` names it."""
    return f"{cell.collective}/{cell.bytes}"


def in_arm(arm: str, cut: str) -> str:
    """What was cut, with its arm, unless that is the default one."""
    return cut if arm == ArmName.DEFAULT else f"{arm}:{cut}"


def _fitting(cell: CellOrder, machine: Machine) -> CellOrder:
    """The cell, at the next smaller size as long as the memory of the fullest GPU does not hold it."""
    size = cell.bytes
    while machine.free_bytes is not None and size > 64 * KIB and size + OWN_MEMORY > machine.free_bytes:
        size //= 4
    return cell if size == cell.bytes else replace(cell, bytes=size, check=True)


def _affordable(priced: Sequence[tuple[CellOrder, float]], seconds: float) -> list[CellOrder]:
    """The first cell, and of the others each that the time still holds."""
    kept: list[CellOrder] = []
    for cell, price in priced:
        if not kept or price <= seconds:
            kept.append(cell)
            seconds -= price
    return kept


def _seconds(cell: CellOrder, arm: ArmName, machine: Machine) -> float:
    """Pessimistic: a call moves its bytes twice, which is the limit of 2(n-1)/n."""
    call = 2 * cell.bytes / (GBPS[arm][0 if machine.linked else 1] * 1e9)
    batches = cell.calls * call if cell.calls else cell.batches * max(cell.batch_ms / 1000, call)
    return batches + call + (CHECK_S if cell.check else 0.0)


def _pairs_seconds(machine: Machine, size: int) -> float:
    pairs = machine.ranks * (machine.ranks - 1)
    return pairs * (PAIR_COPIES + 1) * size / (PAIR_GBPS[0 if machine.linked else 1] * 1e9)


def _pairs_bytes(machine: Machine, seconds: float) -> int:
    """The largest copy that has room in time and memory (source and destination); 0 for none."""
    free = machine.free_bytes
    too_large = takewhile(
        lambda size: (
            _pairs_seconds(machine, size) > seconds or (free is not None and 2 * size + OWN_MEMORY > free)
        ),
        PAIR_BYTES,
    )
    return (*PAIR_BYTES, 0)[len(tuple(too_large))]
