"""The real benchmark on simulated machines: all but GPUs and NCCL is real, and gives what the machine has."""

from pathlib import Path

import pytest

from nodegauge_contract import ArmName, ArmOutcome, Collective, text
from nodegauge_contract.reading import PART_BYTES
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.measurement import busbw_gbps
from support.nccl_probe import NcclRun
from support.nccl_results import GIB, arm_of
from testbed import profiles
from testbed.hardware import plug
from testbed.kubelet.images import simulated_nccl_environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MEASURABLE = [
    name
    for name in profiles.names()
    if (machine := profiles.load(name)).nccl and len(machine.gpus) > 1 and not machine.model.mig_enabled
]
SHOWN = {"h100-runtime-hides-8": 2}
"""GPUs that a pod sees, where that is not all of them."""


@pytest.mark.parametrize("profile", MEASURABLE)
def test_every_machine_is_measured_as_what_it_is(tmp_path: Path, profile: str) -> None:
    hardware = plug(profile, tmp_path / "hardware")
    ran = NcclRun(hardware, hardware.directory, simulated_nccl_environment(ROOT)).result()
    nccl, known = ran.nccl, hardware.profile.nccl

    ranks = SHOWN.get(profile, hardware.gpu_count)
    assert (nccl.engine, nccl.ranks, nccl.skipped) == ("simulated", ranks, "")
    assert set(nccl.cut) <= {f"pairs/{GIB // 4}"}  # of 240 pairs: copied in smaller pieces
    assert {one.outcome for one in nccl.arms} == {ArmOutcome.DONE}
    assert nccl.uuids == hardware.uuids[:ranks]
    nvls = 0 < known.nvls_from <= ranks
    way = known.ways["nvls" if nvls else "p2p" if "p2p" in known.ways else "host"]
    wanted = way.busbw["all_reduce"]
    best = wanted[max(n for n in wanted if n <= ranks)]
    default, off = arm_of(ran, ArmName.DEFAULT), arm_of(ran, ArmName.P2P_OFF)
    [us] = [c.us for c in default.cells if (c.collective, c.bytes) == (Collective.ALL_REDUCE, GIB)]
    assert busbw_gbps(Collective.ALL_REDUCE, bytes=GIB, us=us, ranks=ranks) == pytest.approx(best, rel=0.02)
    assert default.nvls is nvls
    assert (off.transport, off.nvls, off.host_buffers) == ("SHM/direct/direct", False, "/dev/shm")
    assert [row[n] for n, row in enumerate(default.pairs)] == [-1] * ranks
    judged = judge_nccl(ran)
    assert judged.verdict in ("pass", "unknown"), judged.summary
    assert judged.agreement in ("confirmed", "unsure"), judged.message
    assert len(text(ran)) <= 0.8 * PART_BYTES["nccl"]
    assert ran.problem is None
