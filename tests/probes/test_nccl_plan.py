"""What is measured where, what a child's environment is, when a cell is measured well, and wrong data."""

from array import array
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_contract import NOT_READ, ArmName, Cell, Collective
from nodegauge_contract.nccl import GRADED
from nodegauge_probes.nccl import pattern, plan
from nodegauge_probes.nccl.engine import MAX_CALLS, measure_cell
from nodegauge_probes.nccl.plan import (
    GIB,
    KIB,
    MIB,
    Machine,
    Spent,
    allowance,
    arms,
    child_environment,
    order_for,
)
from nodegauge_probes.nccl.protocol import CellOrder, Order
from nodegauge_probes.nccl.supervisor import Limits

DEFAULT, P2P_OFF, NVLS_OFF = ArmName.DEFAULT, ArmName.P2P_OFF, ArmName.NVLS_OFF
H100 = Machine(ranks=8, capability=(9, 0), switched=True, linked=True, free_bytes=78 * GIB)
PCIE = Machine(ranks=8, capability=(8, 9), free_bytes=40 * GIB)
EIGHT = tuple(f"GPU-{n}" for n in range(8))


def planned(machine: Machine, arm: ArmName = DEFAULT, *, seconds: float = 19.0) -> tuple[Order, list[str]]:
    ordered, cut = order_for(arm, machine, uuids=EIGHT[: machine.ranks], seconds=seconds)
    return ordered, list(cut)


def cells(ordered: Order) -> set[tuple[str, int]]:
    return {(cell.collective, cell.bytes) for cell in ordered.cells}


@pytest.mark.parametrize(
    ("machine", "wanted"),
    [
        (H100, (DEFAULT, P2P_OFF, NVLS_OFF)),
        (Machine(ranks=2, capability=(9, 0), switched=True), (DEFAULT, P2P_OFF, NVLS_OFF)),
        (Machine(ranks=8, capability=(8, 0), switched=True), (DEFAULT, P2P_OFF)),
        (Machine(ranks=8, capability=(9, 0), linked=True), (DEFAULT, P2P_OFF)),
        (Machine(ranks=8, switched=True), (DEFAULT, P2P_OFF)),
        (Machine(ranks=2), (DEFAULT, P2P_OFF)),
    ],
)
def test_arms(machine: Machine, wanted: tuple[ArmName, ...]) -> None:
    """NVLS off where it could be on: Hopper or newer, NVSwitch; the other two always."""
    assert arms(machine) == wanted


def test_the_cells_of_the_protocol() -> None:
    ordered, cut = planned(H100)
    sizes = (8, 4 * KIB, 64 * KIB, 64 * MIB, 256 * MIB, GIB)
    two = {(of, size) for of in ("all_gather", "reduce_scatter") for size in (64 * KIB, GIB)}
    assert cells(ordered) == {("all_reduce", size) for size in sizes} | two
    assert (ordered.pairs_bytes, ordered.pair_copies, ordered.warm_up_ms, cut) == (256 * MIB, 5, 300, [])
    assert ordered.uuids == EIGHT
    assert {cell.calls for cell in ordered.cells} == {0}
    checked = {cell.bytes for cell in ordered.cells if cell.check}
    assert {64 * KIB, 64 * MIB, 256 * MIB} <= checked, "once per size class"
    assert GIB not in checked, "comparing it takes longer than the rest"


def test_little_is_measured_in_the_other_arms() -> None:
    without_p2p, _ = planned(H100, P2P_OFF, seconds=5)
    assert cells(without_p2p) == {
        *(("all_reduce", size) for size in (64 * KIB, 64 * MIB, 256 * MIB)),
        ("all_gather", 256 * MIB),
    }
    assert {cell.calls for cell in without_p2p.cells} == {5}
    assert {64 * KIB, 64 * MIB, 256 * MIB} <= {cell.bytes for cell in without_p2p.cells if cell.check}
    without_nvls, _ = planned(H100, NVLS_OFF, seconds=3)
    assert cells(without_nvls) == {("all_reduce", GIB)}
    assert without_p2p.pairs_bytes == without_nvls.pairs_bytes == 0


def test_a_healthy_node_is_measured_whole_on_the_usual_budget() -> None:
    spent: list[Spent] = []
    names = arms(H100)
    for index, arm in enumerate(names):
        seconds = allowance(plan.BUDGET_S, spent=spent, later=names[index + 1 :])
        ordered, cut = planned(H100, arm, seconds=seconds)
        assert cut == []
        assert ordered.budget_ms < Limits().measure * 1000
        spent.append(Spent(startup=55.0, measure=6.0, teardown=1.0))
    assert sum(arm.counted for arm in spent) < plan.BUDGET_S


@pytest.mark.parametrize("machine", [H100, PCIE, Machine(ranks=2), Machine(ranks=16, linked=True)])
def test_a_short_budget_cuts_sizes_and_never_arms(machine: Machine) -> None:
    for arm in arms(machine):
        ordered, cut = planned(machine, arm, seconds=allowance(1.0, spent=[], later=[]))
        assert len(ordered.cells) >= 1
        assert ordered.cells[0].bytes >= 256 * MIB
        wanted = {plan.in_arm(arm, plan.name(cell)) for cell in plan.CELLS[arm]}
        kept = {plan.in_arm(arm, plan.name(cell)) for cell in ordered.cells}
        assert wanted == kept | {each for each in cut if "pairs/" not in each}
        assert not kept & set(cut)


def test_what_is_kept_is_what_is_worth_most() -> None:
    ordered, cut = planned(PCIE, seconds=12.0)
    assert ("all_reduce", GIB) in cells(ordered)
    assert ("all_reduce", 8) in cells(ordered)
    assert "all_reduce/1073741824" not in cut
    assert cut


@pytest.mark.parametrize(
    ("machine", "size"),
    [
        (H100, 256 * MIB),
        (PCIE, 64 * MIB),
        (Machine(ranks=16, linked=True), 64 * MIB),
        (Machine(ranks=16), 16 * MIB),
        (Machine(ranks=64), 0),
    ],
)
def test_pairs_take_a_third_of_the_time_at_most(machine: Machine, size: int) -> None:
    ordered, cut = planned(machine, seconds=20.0)
    assert ordered.pairs_bytes == size
    assert ("pairs/268435456" in cut) == (size != 256 * MIB)


@pytest.mark.parametrize(
    ("free", "largest"), [(78 * GIB, GIB), (3 * GIB, GIB), (3 * GIB - 1, 256 * MIB), (2 * GIB, 64 * KIB)]
)
def test_sizes_are_cut_by_free_memory(free: int, largest: int) -> None:
    machine = Machine(ranks=8, capability=(7, 5), linked=True, free_bytes=free)
    ordered, cut = planned(machine)
    assert max(cell.bytes for cell in ordered.cells) == largest
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        assert max(cell.bytes for cell in ordered.cells if cell.collective == collective) == largest
        assert (f"{collective}/{GIB}" in cut) == (largest != GIB)
    assert ordered.pairs_bytes == 0 or 2 * ordered.pairs_bytes + plan.RESERVED_BYTES <= free


SECONDS = st.floats(0, 500, allow_nan=False)
SPENT = st.builds(Spent, startup=SECONDS, measure=SECONDS, teardown=SECONDS)


@given(st.floats(1, 600), st.lists(SPENT, max_size=2), st.lists(st.sampled_from(list(ArmName)), max_size=2))
def test_every_arm_measures_within_its_limit(budget: float, spent: list[Spent], later: list[ArmName]) -> None:
    seconds = allowance(budget, spent=spent, later=later)
    assert plan.LEAST_S <= seconds <= plan.MOST_S < Limits().measure


@given(
    st.integers(2, 64),
    st.booleans(),
    st.none() | st.integers(0, 200 * GIB),
    st.floats(1, 40),
    st.sampled_from(list(ArmName)),
)
def test_a_plan_can_be_told(ranks: int, linked: bool, free: int | None, seconds: float, arm: ArmName) -> None:
    machine = Machine(ranks=ranks, linked=linked, free_bytes=free)
    ordered, cut = order_for(arm, machine, uuids=[f"GPU-{n}" for n in range(ranks)], seconds=seconds)
    assert ordered.cells
    assert len(cells(ordered)) == len(ordered.cells)
    assert ordered.budget_ms >= plan.LEAST_S * 1000
    assert len(cut) <= len(plan.CELLS[arm]) + 1


SCRATCH = Path("/tmp/nodegauge-x")
NEEDED = {
    "PATH": "/opt/nodegauge/bin",
    "PYTHONPATH": "/opt/nodegauge/lib",
    "LD_LIBRARY_PATH": "/usr/lib/nvidia",
    "NODEGAUGE_RUN": "run-1",
}
TUNING = {
    "NCCL_ALGO": "Tree",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_CONF_FILE": "/etc/nccl.conf",
    "LD_PRELOAD": "/x.so",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
}
OWN = NEEDED | TUNING | {"HOME": "/root", "NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0"}


def child(arm: ArmName, policy: dict[str, str] | None = None) -> dict[str, str]:
    return child_environment(OWN, arm=arm, uuids=["GPU-b", "GPU-a"], policy=policy or {}, scratch=SCRATCH)


def test_nobody_s_tuning_is_inherited_and_no_network_looked_for() -> None:
    """What a program needs to start, GPUs by UUID, loopback alone, and a log of the arm's own."""
    env = child(ArmName.DEFAULT)
    assert env.items() >= NEEDED.items()
    assert not env.keys() & TUNING.keys()
    assert env["HOME"] == "/tmp"
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-b,GPU-a", "PCI_BUS_ID")
    assert (env["NCCL_SOCKET_IFNAME"], env["NCCL_IB_DISABLE"], env["NCCL_NET_PLUGIN"]) == ("lo", "1", "none")
    assert env["NCCL_DEBUG_FILE"] == "/tmp/nodegauge-x/nccl.%h.%p.log"
    assert {"INIT", "TUNING", "NVLS", "P2P", "SHM"} <= set(env["NCCL_DEBUG_SUBSYS"].split(","))


def test_arms_differ_in_their_variables_alone() -> None:
    """The host-memory path switches NVLS off, too: NCCL does not."""
    default = child(ArmName.DEFAULT)
    assert child(ArmName.P2P_OFF) == {**default, "NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    assert child(ArmName.NVLS_OFF) == {**default, "NCCL_NVLS_ENABLE": "0"}


def test_the_policy_comes_on_top_and_below_the_arm() -> None:
    policy = {"NCCL_ALGO": "Ring", "NCCL_IB_DISABLE": "0", "NCCL_P2P_DISABLE": "0", "NCCL_DEBUG": "WARN"}
    env = child(ArmName.P2P_OFF, policy)
    assert (env["NCCL_ALGO"], env["NCCL_IB_DISABLE"]) == ("Ring", "0")
    assert (env["NCCL_P2P_DISABLE"], env["NCCL_DEBUG"]) == ("1", "INFO")


ORDER = CellOrder(collective="all_reduce", bytes=1 << 20)


class Time:
    """A clock that batches move: `ms` of one call, batch after batch, the last for ever."""

    def __init__(self, *ms: float) -> None:
        self.now = 0.0
        self.calls: list[int] = []
        self._ms = chain(ms, repeat(ms[-1]))

    def batch(self, calls: int) -> float:
        taken = calls * next(self._ms)
        self.calls.append(calls)
        self.now += taken / 1000
        return taken

    def measure(self, order: CellOrder = ORDER, *, seconds_left: float = 60.0) -> Cell:
        left, clock = seconds_left, lambda: self.now
        return measure_cell(order, self.batch, wrong=NOT_READ, seconds_left=left, clock=clock)


def test_batches_are_as_long_as_was_ordered() -> None:
    time = Time(0.1)
    cell = time.measure()
    assert time.calls[-1] == 200
    assert (cell.batches, cell.calls, cell.us) == (5, 1000, pytest.approx(100))
    assert Time(50.0).measure().calls == 5


def test_a_slow_first_call_does_not_make_batches_short() -> None:
    """Launching for the first time may take a hundred times as long."""
    time = Time(10.0, 0.1)
    time.measure()
    assert time.calls[-1] * 0.1 >= 10


def test_tiny_calls_have_an_end() -> None:
    time = Time(1e-7)
    assert time.measure().us == pytest.approx(1e-4)
    assert max(time.calls) == MAX_CALLS


def test_it_stops_when_the_last_batches_agree() -> None:
    tries, slow = [60.0, 50.0], [40.0, 30.0, 25.0]
    cell = Time(*tries, *slow, 20.0).measure()
    assert cell.batches == len(slow) + 5
    assert cell.us == pytest.approx(20_000)
    assert cell.us_max == pytest.approx(40_000)
    assert isinstance(cell.spread, float)


def test_noise_is_measured_until_its_time_is_up() -> None:
    time = Time(*[20.0, 40.0] * 500)
    cell = time.measure(CellOrder(collective="all_reduce", bytes=8, max_ms=1000))
    assert 0.9 < time.now < 1.2
    assert cell.spread == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize(("spread", "batches"), [(0.02, 5), (0.0, 148)])
def test_a_spread_of_nothing_never_stops_early(spread: float, batches: int) -> None:
    order = CellOrder(collective="all_reduce", bytes=8, spread=spread, max_ms=3000)
    assert Time(20.0).measure(order).batches == pytest.approx(batches, abs=1)


def test_what_is_left_of_the_run_is_less_than_a_cells_own_time() -> None:
    assert Time(20.0).measure(seconds_left=0.095).batches == 3
    assert Time(20.0).measure(seconds_left=-5).batches == 1


RANKS = st.integers(min_value=1, max_value=64)
NAMES = st.sampled_from(GRADED)


@given(ranks=RANKS)
def test_sums_are_exact_in_float32(ranks: int) -> None:
    largest = ranks * (ranks + 1) // 2 * pattern.PERIOD
    assert largest < 2**24


@given(name=NAMES, ranks=RANKS, size=st.integers(min_value=1, max_value=1 << 34))
def test_ranks_move_what_was_ordered_or_a_little_less(name: Collective, ranks: int, size: int) -> None:
    """Rounded down to 16 bytes a rank, but for sizes that no rank has as many of."""
    moved = pattern.total(name, size, ranks)
    least = pattern.ELEMENT * (1 if name is Collective.ALL_REDUCE else ranks)
    lost = least if name is Collective.ALL_REDUCE else 4 * least
    assert moved == least or size - lost < moved <= size


@given(
    name=st.sampled_from([Collective.ALL_GATHER, Collective.REDUCE_SCATTER]),
    ranks=st.integers(min_value=2, max_value=64),
    size=st.integers(min_value=4096, max_value=1 << 34),
)
def test_a_ranks_block_begins_where_16_bytes_move_at_once(name: Collective, ranks: int, size: int) -> None:
    """1 GiB over 7 ranks would begin 8 bytes off, and a node with 7 of its 8 GPUs would look slow."""
    assert pattern.elements(name, size, ranks) * pattern.ELEMENT % 16 == 0


def model(name: Collective, *, ranks: int, rank: int, count: int) -> list[float]:
    inputs = [[(r + 1) * (i % 251 + 1) for i in range(count * ranks)] for r in range(ranks)]
    if name is Collective.ALL_GATHER:
        return [value for row in inputs for value in row[:count]]
    sums = [sum(column) for column in zip(*inputs, strict=True)]
    return sums[:count] if name is Collective.ALL_REDUCE else sums[rank * count : (rank + 1) * count]


@given(
    name=NAMES,
    ranks=st.integers(min_value=1, max_value=5),
    count=st.integers(min_value=1, max_value=600),
    data=st.data(),
)
def test_arithmetic_gives_the_expected(name: Collective, ranks: int, count: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    wanted = model(name, ranks=ranks, rank=rank, count=count)
    start = data.draw(st.integers(0, len(wanted) - 1))
    stop = data.draw(st.integers(start + 1, len(wanted)))
    actual = pattern.expected(name, ranks=ranks, rank=rank, count=count, start=start, stop=stop)
    assert array("f", actual).tolist() == wanted[start:stop]


def test_wrong_elements_are_counted() -> None:
    good = pattern.values(1, start=0, stop=500)
    assert pattern.wrong(good, good) == 0
    assert pattern.wrong(good[:400] + b"\xff" * 4 + good[404:], good) == 1
    assert pattern.wrong(pattern.values(2, start=0, stop=500), good) == 500


@pytest.mark.parametrize(("size", "pieces"), [(4, 1), (16 << 20, 1), ((16 << 20) + 4, 3), (1 << 30, 3)])
def test_large_results_are_compared_in_three_places(size: int, pieces: int) -> None:
    parts = list(pattern.windows(size))
    assert len(parts) == pieces
    assert (parts[0][0], parts[-1][1]) == (0, size)
    assert all(low % 4 == high % 4 == 0 and high <= size for low, high in parts)
