"""Whether bandwidth agrees with the interconnect that NVML reports, and which single link is slow."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NOT_READ, ArmName, Problem
from nodegauge_judge import Verdict
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.model import Agreement
from support.nccl_results import SHM, codes, finding

# -- agreement with what NVML reports


def test_nvlink_at_pcie_speed_is_contradicted_and_says_by_which_numbers() -> None:
    """Up in name, down in fact: 12 GB/s is not what 50 GB/s of NVLink give."""
    said = judge_nccl(nccl.titan(12))
    assert said.agreement is Agreement.CONTRADICTED
    assert {"interconnect-contradicted/warn", "busbw-low/warn"} == codes(said)
    for words in ("12 GB/s", "50 GB/s", "Measured: all_reduce"):
        assert words in finding(said, "interconnect-contradicted").message


def test_slow_nvlink_that_pcie_cannot_explain_is_low_and_not_contradicted() -> None:
    """H100 at 100 GB/s has NVLink, and something is wrong with it."""
    said = judge_nccl(nccl.h100(100, gather=350))
    assert (said.agreement, codes(said)) == (Agreement.UNSURE, {"busbw-low/warn"})


@pytest.mark.parametrize(("host", "agreement"), [(32, "contradicted"), (31, "confirmed"), (4, "confirmed")])
def test_no_gain_from_peer_access_contradicts_nvlink(host: float, agreement: str) -> None:
    """40 GB/s at 1 GiB are 36 at 256 MiB: at most 15 % above 32 without peer access, and more above 31."""
    assert judge_nccl(nccl.titan(40, host=host)).agreement == agreement


def test_equality_is_right_where_the_ring_crosses_pcie() -> None:
    """NCCL uses peer access only up to a PCIe switch: boxes on a host bridge are equal, rightly."""
    said = judge_nccl(nccl.phb(11, host=11))
    assert (said.agreement, said.findings) == (Agreement.CONFIRMED, [])
    pairs = made.every_gpu(made.a100_bridged_pairs(), pcie=nccl.GEN4, compute_capability="8.0")
    first = nccl.default_arm(20, gather=20, ranks=4, algorithm="RING", transport=f"{nccl.P2P}+{SHM}")
    equal = judge_nccl(nccl.node(pairs, first, nccl.p2p_off_arm(20, ranks=4)))
    assert (equal.agreement, equal.findings) == (Agreement.UNSURE, [])


def test_an_arm_that_did_not_switch_peer_access_off_proves_nothing() -> None:
    """Equal because both used it."""
    same = nccl.swapped(nccl.titan(40, host=36), ArmName.P2P_OFF, transport=nccl.P2P)
    assert judge_nccl(same).agreement is Agreement.CONFIRMED


def test_peer_access_that_the_policy_switches_off_is_no_contradiction() -> None:
    """The user's environment made it slow: neither a floor nor a finding, and no confirmation."""
    said = judge_nccl(nccl.titan(4), environment={"NCCL_P2P_DISABLE": "1"})
    assert (said.agreement, said.verdict, said.findings) == (Agreement.UNSURE, Verdict.PASS, [])
    assert judge_nccl(nccl.titan(4), environment={"NCCL_DEBUG": "WARN"}).findings


def test_no_published_row_is_held_against_peer_access_that_is_off() -> None:
    """Rows are of machines that may use all they have; the policy's own rows still count."""
    machine = made.every_gpu(made.a100(), pcie=nccl.GEN4, compute_capability="8.0")
    slow = nccl.node(machine, nccl.default_arm(20, gather=20, ranks=8, algorithm="RING", transport=SHM))
    off = {"NCCL_P2P_LEVEL": "LOC"}
    assert codes(judge_nccl(slow)) >= {"busbw-low/warn"}
    assert judge_nccl(slow, environment=off).findings == []
    own = Expectation(gpu="*A100*", count=8, collective="all_reduce", bytes=1 << 30, busbw=25)
    said = judge_nccl(slow, environment=off, expectations=Expectations.default().with_policy([own]))
    assert codes(said) == {"busbw-low/warn"}


def test_slower_than_pcie_could_is_no_contradiction_near_the_rate_of_nvlink() -> None:
    """A narrow NVLink is not much faster than PCIe 4: 25 of 56 GB/s is low, and NVLink all the same."""
    machine = made.every_gpu(made.rtx3090(), pcie=nccl.GEN4, compute_capability="8.6")
    for gbps, agreement in ((25, Agreement.UNSURE), (22, Agreement.CONTRADICTED)):
        first = nccl.default_arm(gbps, gather=40, ranks=2, algorithm="RING")
        assert judge_nccl(nccl.node(machine, first)).agreement is agreement


def test_gpus_that_the_pod_was_not_given_do_not_hide_the_class() -> None:
    """The bus shows eight, the device plugin gave seven, and the run was told to end early: the links of the
    seven are what they are."""
    seven = made.with_bus(nccl.h100(440, count=7), more=["0000:16:00.0"])
    said = judge_nccl(replace(seven, problem=Problem(kind="deadline")))
    assert said.agreement is Agreement.CONFIRMED


def test_more_than_pcie_carries_contradicts_no_nvlink() -> None:
    """Two cards that are reported without NVLink and reach 40 GB/s over 31.5."""
    said = judge_nccl(nccl.phb(40))
    assert (said.agreement, codes(said)) == (Agreement.CONTRADICTED, {"interconnect-contradicted/warn"})


def test_pairs_are_confirmed_by_their_copies() -> None:
    """A ring crosses PCIe, so only the pair matrix can tell of bridges: 250 GB/s yes, 20 no."""
    machine = made.every_gpu(made.a100_bridged_pairs(), pcie=nccl.GEN4, compute_capability="8.0")
    first = nccl.default_arm(25, gather=25, ranks=4, algorithm="RING", transport=f"{nccl.P2P}+{SHM}")
    node = nccl.node(machine, first)
    bridges = dict.fromkeys(((0, 1), (1, 0), (2, 3), (3, 2)), 250.0)
    assert judge_nccl(nccl.with_pairs(node, 20.0, slow=bridges)).agreement is Agreement.CONFIRMED
    assert judge_nccl(nccl.with_pairs(node, 20.0)).agreement is Agreement.CONTRADICTED
    assert judge_nccl(node).agreement is Agreement.UNSURE


def test_all_pairs_at_pcie_speed_contradict_nvlink() -> None:
    """SHARP could hide it from all_reduce; copies cannot be hidden from."""
    assert judge_nccl(nccl.with_pairs(nccl.h100(), 50.0)).agreement is Agreement.CONTRADICTED


# -- the slow pair


def test_one_bad_link_is_named_by_its_two_gpus() -> None:
    """A ring only shows that something is slow."""
    slow = {(2, 5): 200.0, (5, 2): 210.0}
    found = finding(judge_nccl(nccl.with_pairs(nccl.h100(), 390.0, slow=slow)), "pair-slow")
    assert found.subject == "GPU 2 (0000:11:00.0) and GPU 5 (0000:14:00.0)"
    assert "200 GB/s" in found.message
    assert "390 GB/s" in found.message


def test_pairs_that_are_all_slow_are_not_taken_for_a_few() -> None:
    """A report keeps the slowest by name; who reads six must not go and change six links."""
    all_slow = finding(judge_nccl(nccl.with_pairs(nccl.h100(28), 20)), "pair-slow")
    assert "Half of the 56 measured directions" in all_slow.message
    one = judge_nccl(nccl.with_pairs(nccl.h100(), 396, slow={(2, 5): 60}))
    assert "Half of" not in finding(one, "pair-slow").message


def test_a_single_pair_is_compared_with_what_its_links_carry() -> None:
    """Two GPUs have no other pair: 20 GB/s over 2 x 25 is slow, 26 is not."""
    for gbps, found in ((20.0, {"pair-slow/warn"}), (26.0, set())):
        assert codes(judge_nccl(nccl.with_pairs(nccl.titan(), gbps))) == found


def test_a_gpu_in_every_slow_pair_is_named() -> None:
    """Then it is that board, not seven links."""
    slow = {(3, i): 190.0 for i in range(8)} | {(i, 3): 190.0 for i in range(8)}
    found = finding(judge_nccl(nccl.with_pairs(nccl.h100(), 390.0, slow=slow)), "pair-slow")
    assert "GPU 3 (0000:12:00.0) is in every slow pair" in found.message


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("gbps", [390.0, 382.0])
def test_pairs_that_differ_by_little_are_fine(gbps: float, whole: bool) -> None:
    """Copies scatter by a few per cent."""
    said = judge_nccl(nccl.with_pairs(nccl.h100(), 390.0, slow={} if whole else {(0, 1): gbps}))
    assert "pair-slow" not in {found.code for found in said.findings}


def test_pairs_are_compared_with_pairs_of_as_many_links() -> None:
    """DGX-1: NV1 reaches half of NV2, rightly."""
    machine = made.every_gpu(made.dgx1(), pcie=nccl.GEN3, compute_capability="7.0")
    node = nccl.node(machine, nccl.default_arm(130, gather=130, ranks=8, algorithm="RING"))
    speeds = {(i, j): 24.0 * made.DGX1_NV[i][j] or 9.0 for i in range(8) for j in range(8)}
    assert judge_nccl(nccl.with_pairs(node, 0.0, slow=speeds)).findings == []
    bad = nccl.with_pairs(node, 0.0, slow=speeds | {(0, 3): 24.0})
    assert finding(judge_nccl(bad), "pair-slow").subject.startswith("GPU 0 ")


@pytest.mark.parametrize("slow", [{(2, 5): 200.0, (5, 2): 210.0}, {(5, i): 260.0 for i in range(8)}])
def test_a_matrix_cut_down_to_two_rows_still_tells(slow: dict[tuple[int, int], float]) -> None:
    """A message without room keeps the rows of the slowest pair's two GPUs alone."""
    whole = nccl.with_pairs(nccl.h100(), 390.0, slow=slow)
    assert whole.nccl is not None
    rows = whole.nccl.arms[0].pairs
    kept: list[list[Any]] = [row if i in (2, 5) else [NOT_READ] * 8 for i, row in enumerate(rows)]
    cut_down = replace(nccl.swapped(whole, ArmName.DEFAULT, pairs=kept), omitted=["bench.pairs"])
    said = judge_nccl(cut_down)
    assert "GPU 5" in finding(said, "pair-slow").subject
    assert "nccl-incomplete/info" in codes(said)
