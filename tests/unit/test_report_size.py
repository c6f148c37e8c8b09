"""A report stays under 8 KiB, and loses first what is said elsewhere too."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import Bus, Repair, Result, Temperature
from nodegauge_judge import Finding, GpuIdentity, Severity
from nodegauge_operator.core import events, gates, report_size
from support.judging import MARK, listening
from support.nccl_nodes import NODE as MEASURED_BY_NCCL
from support.nccl_nodes import nccl_node
from support.objects import INTERVAL, NOW, AReport, make_node, make_policy, make_report, read
from support.properties import tried

NODE = make_node()
MEMORY = "x" * 2000


def dgx2(codes: list[str]) -> Result:
    """Sixteen GPUs of which the judge says that these rows are bad."""
    machine = made.switched(16, name="Tesla V100-SXM3-32GB", links=6, mbps=25_781)
    return made.with_gpu(machine, 0, vbios=f"{MARK}{' '.join(f'{code}=b' for code in codes)};loaded;fault")


def with_cards(result: Result, count: int) -> Result:
    """The document with so many network cards."""
    nics = made.with_ports(result, *["ACTIVE"] * count).nics
    cards = [["X" if i == j else "NODE" for j in range(count)] for i in range(count)]
    return replace(result, nics=replace(nics, to_nic=cards))


def ran(*results: Result, history: str = "") -> AReport:
    """The report after these runs, one each interval, the memory of the judge as given."""
    report = make_report()
    for n, result in enumerate(results):
        end = read(made.later(result, seconds=900 * n))
        report = report.after(end, node=NODE, at=NOW + n * INTERVAL)
    worn = [replace(probe, history=history or probe.history) for probe in report.status.probes]
    report = replace(report, status=replace(report.status, probes=worn))
    return report.seen(node=NODE, policy=make_policy(), at=NOW + len(results) * INTERVAL)


def full(codes: list[str]) -> AReport:
    """The report of rows that were bad three times, its memory as large as it gets."""
    with listening():
        return ran(*[dgx2(codes)] * 3, history=MEMORY)


@pytest.mark.parametrize("count", [0, 1, 3, 6, 8])
def test_sixteen_gpus_and_many_bad_rows_fit(count: int) -> None:
    """And nothing that decides is cut: states, times, taints, the memory of the next judgement."""
    codes = [code for code in gates.GATES if code != "node-unreadable"][:count]  # no reading enters that
    report = full(codes)
    assert report_size.size(report.status) <= report_size.LIMIT
    assert [row.code for row in report.status.gates] == codes
    assert all(row.entered_at and row.bad >= 2 for row in report.status.gates)
    assert report.status.probes[0].history == MEMORY
    assert len(report.status.gpus.items) == 16
    assert bool(report.status.desired.taints) == bool(codes)
    if codes:
        assert report.status.probes[0].findings


@pytest.mark.parametrize("hot", [False, True])
def test_the_largest_machine_keeps_the_identity_of_its_gpus(hot: bool) -> None:
    """Sixteen GPUs with UUID, address and serial number, ten cards, also with a fault on every GPU."""
    machine = with_cards(dgx2([]), 10)
    gpus = [replace(gpu, serial=f"0323718{gpu.index:06d}") for gpu in machine.gpus]
    machine = replace(machine, gpus=gpus)
    if hot:
        machine = made.every_gpu(machine, repair=Repair(action=1), temperature=Temperature(gpu=95))
    status = ran(*[machine] * 3, history="x" * 951).status
    assert report_size.size(status) <= report_size.LIMIT
    assert bool(status.desired.taints) is hot
    assert [(gpu.uuid, gpu.serial, gpu.pci) for gpu in status.gpus.items] == [
        (gpu.uuid, gpu.serial, gpu.pci) for gpu in gpus
    ]


@given(count=st.integers(0, len(gates.GATES)))
@tried(25)
def test_cutting_twice_is_cutting_once(count: int) -> None:
    """Else the operator would write a report again and again."""
    report = full(list(gates.GATES)[:count])
    assert report_size.fitted(report.status) == report.status
    again = report.seen(node=NODE, policy=make_policy(), at=NOW + 3 * INTERVAL)
    assert again.status == report.status


FINDINGS = st.lists(
    st.builds(
        Finding,
        code=st.sampled_from(["hot", "xid", "ecc"]),
        severity=st.sampled_from(list(Severity)),
        subject=st.text(max_size=10),
        message=st.text(max_size=300),
    ),
    max_size=12,
    unique_by=lambda f: (f.code, f.severity, f.subject),
)


@given(findings=FINDINGS, most=st.integers(0, 2000))
@tried(200)
def test_the_worst_findings_are_kept_in_their_order(findings: list[Finding], most: int) -> None:
    """None that is dropped is worse than one that is kept."""
    kept = report_size.worst(findings, most)
    assert kept == [f for f in findings if f in kept]
    assert len(kept) >= min(1, len(findings))
    assert len(kept) <= 1 or len(msgspec.json.encode(kept)) <= most
    order = list(Severity)
    dropped = [order.index(f.severity) for f in findings if f not in kept]
    assert not dropped or max(dropped) <= min(order.index(f.severity) for f in kept)


@pytest.mark.parametrize("memory", range(200, 2049, 132))
def test_what_took_a_label_away_outlasts_the_list_of_gpus(memory: int) -> None:
    """Eight GPUs, many cards, links up in name alone, and memories of any size."""
    report = nccl_node().healthy(result=with_cards(made.h100(), 14), at=NOW + 1)
    report = report.measured(nccl.h100(21.0, gather=16.0, ring=20.0), at=NOW + 10)
    probes = [
        replace(report.status.probe("health"), history="x" * memory),
        replace(report.status.probe("nccl"), history="x" * 2048),
    ]
    fitted = report_size.fitted(replace(report.status, probes=probes))
    assert report_size.size(fitted) <= report_size.LIMIT
    kept = [finding.code for finding in fitted.probe("nccl").findings]
    assert "interconnect-contradicted" in kept or not fitted.gpus.items


def test_the_largest_machine_fits_with_its_nccl_run() -> None:
    """Sixteen GPUs, ten cards, slow pairs, rows of both probes bad; a DGX-2's health memory had 951 bytes."""
    node = MEASURED_BY_NCCL.offering(16)
    machine = with_cards(dgx2(["hot", "p2p-refused"]), 10)
    slow = {(i, j): 20.0 for i in range(16) for j in range(16) if i < j and (i + j) % 2}
    arms = [nccl.default_arm(9.0, gather=8.0, ranks=16, algorithm="RING"), nccl.p2p_off_arm(9.0, ranks=16)]
    measured = nccl.with_pairs(nccl.node(machine, *arms), 140.0, slow=slow)
    floor = {"gpu": "*V100*", "count": 16, "collective": "all_reduce", "bytes": 1 << 30, "busbw": 130}
    policy = make_policy().of({"expectations": [floor | {"floor": 110}]})
    with listening():
        report = nccl_node(node).healthy(node, result=machine, at=NOW + 1)
        for n in range(3):
            report = report.measured(measured, node, at=NOW + 10 + n, policy=policy)
    health = replace(report.status.probe("health"), history="x" * 951)
    fitted = report_size.fitted(replace(report.status, probes=report.status.with_probe(health)))
    assert report_size.size(fitted) <= report_size.LIMIT
    assert [row.code for row in fitted.gates] == ["p2p-refused", "hot", "busbw-low"]
    assert all(probe.findings for probe in fitted.probes if probe.name != "pull")
    assert fitted.probe("nccl").history == report.status.probe("nccl").history
    assert fitted.desired == report.status.desired
    assert report_size.fitted(fitted) == fitted


WHOLE = made.with_bus(
    replace(made.h100(), gpus=[replace(gpu, serial=f"16549{gpu.index:04d}") for gpu in made.h100().gpus])
)
LOST = replace(WHOLE, gpus=WHOLE.gpus[:7], bus=Bus(gpus=[made.pci(n) for n in range(7)]))
SEVENTH = GpuIdentity(index=7, uuid=made.uuid(7), serial="165490007", pci=made.pci(7))


def test_a_lost_gpu_stays_known_until_it_is_back() -> None:
    """However many runs do without it; index, address, UUID and serial number."""
    lost = ran(WHOLE, LOST, LOST, LOST)
    assert lost.status.gpus.missing == [SEVENTH]
    assert next(f for f in lost.status.probes[0].findings if f.code == "gpu-lost").gpus == [SEVENTH]
    assert ran(WHOLE, LOST, WHOLE).status.gpus.missing == []


@pytest.mark.parametrize(
    ("sick", "serial"), [(LOST, "165490007"), (made.with_gpu(WHOLE, 3, repair=Repair(action=1)), "165490003")]
)
def test_the_event_of_a_taint_gives_the_serial_number(sick: Result, serial: str) -> None:
    """Whoever gets the event orders the board with it."""
    change = ran(WHOLE, sick).status.change
    assert change is not None
    assert "tainted unhealthy=" in change.message
    assert f", serial {serial}: " in change.message


@given(
    text=st.lists(st.sampled_from(["look", "`nvidia-smi -q -i 3`", "größer", "`systemctl status x`", "a. "]))
    .map(" ".join)
    .filter(bool),
    most=st.integers(4, 200),
)
@tried(200)
def test_no_command_is_cut_in_two(text: str, most: int) -> None:
    """It stays whole or goes, in report, condition and event alike."""
    cut = report_size.cut(text, most)
    assert cut.count("`") % 2 == 0
    assert cut == text or cut.endswith("...")
    assert len(cut.encode()) <= most
    assert events.bounded(text * 60).count("`") % 2 == 0
