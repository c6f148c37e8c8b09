"""Rows of the findings catalogue about bandwidth: what collectives reach, and what could not be graded."""

from __future__ import annotations

from nodegauge_judge.entry import Code, Entry
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import Probe
from nodegauge_judge.rules.steps import DRIVER_LOG, OWN_RUN, REPORT, VENDOR

BANDWIDTH_ENTRIES = (
    Entry(
        code=Code.BUSBW_LOW,
        title="collectives are slower than they should be",
        meaning=(
            "A collective over all GPUs of the node stays below its floor. The floor is a published row of "
            "[the expectations](expectations.md) or one of the policy where there is one for this GPU, "
            "count, size and algorithm, and else a share of what the links can carry; the message names "
            "which. Every step of a training job waits for this."
        ),
        when={
            Severity.WARN: (
                "below the floor for the first time; or below it while the pod's CPU limit held it back "
                "for so long that the measurement may be to blame"
            ),
            Severity.FAIL: "below the floor once more",
        },
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.BUSBW),
        next_step="look for a slow pair, missing NVLinks or a clock that is held down in the other findings.",
        way_out=(
            REPORT
            + " A `pair-slow` finding names the link; `nvlink-degraded`, `pcie-narrow` or a throttling "
            "finding is the usual cause.",
            "On the node: `nvidia-smi nvlink -s` (links that are down) and `nvidia-smi nvlink -e` (errors).",
            OWN_RUN,
            "A floor that does not fit this machine: put a row into `spec.expectations` of the policy; the "
            "last result is graded again without a new run.",
            VENDOR,
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.BUSBW_BELOW_PEERS,
        title="collectives are slower than on nodes like it",
        meaning=(
            "Nodes with the same GPUs, links, driver branch and NCCL version reach more. It may still be "
            "above its floor: equal machines should be equally fast, and the slowest of them paces a job."
        ),
        when={
            Severity.WARN: (
                "all_reduce at 1 GiB is below `busbwPeersShare` (default 0.85) of the median of the nodes of "
                "its kind, this one among them, once there are three"
            )
        },
        next_step="compare the node with one of its kind: clocks, power limit, BIOS settings, NVLink errors.",
        way_out=(
            "`kubectl get nodereports -o wide` lists the nodes with their numbers.",
            "`nvidia-smi -q -d CLOCK,POWER,PERFORMANCE` on both; `nvidia-smi nvlink -e` on both.",
            "BIOS version and settings, and the fabric manager's version, should be the same.",
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.BUSBW_DISAGREES,
        title="two runs of the benchmark disagree",
        meaning=(
            "A collective was clearly faster or slower than at the run before. One of the two is not what "
            "the node can do, so a third run is asked for and the median of the three counts; until then "
            "the newest does."
        ),
        when={
            Severity.INFO: (
                "a collective differs from the run before by more than `busbwDisagreement` (default 0.1) of "
                "the larger value"
            )
        },
        next_step="wait for the third run; nodegauge asks for it by itself.",
        way_out=(
            REPORT,
            "If runs go on disagreeing: something else uses the machine (CPU load, another tenant, a "
            "throttling GPU). The health findings of the same hour say more.",
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.INTERCONNECT_CONTRADICTED,
        title="bandwidth contradicts the reported interconnect",
        meaning=(
            "What was measured cannot come from the interconnect that the driver reports: NVLinks that are "
            "up, and collectives no faster than PCIe, or no faster with peer access than without it; or no "
            "NVLink, and collectives faster than PCIe can be. The interconnect labels are withdrawn until "
            "the two agree, because a job that asks for NVLink would be sent to a node without it. Boxes "
            "whose GPUs talk through the host either way are equal in both, rightly, and not meant here."
        ),
        when={
            Severity.WARN: (
                "a ring of NVLinks is reported, and all_reduce is below `contradictedShare` (default 0.4) of "
                "their rate and not above what the slowest PCIe link carries, or at most `p2pMinGain` "
                "(default 0.15) faster than with peer access switched off; or all pairs with NVLinks copy "
                "that slowly; or no NVLink is reported, and all_reduce is faster than the slowest PCIe link"
            )
        },
        next_step="on the node, see whether NCCL uses the links: `NCCL_DEBUG=INFO` names the transport.",
        way_out=(
            OWN_RUN + " `via P2P` is the links, `via SHM` the host's memory.",
            "NVSwitch machines: `systemctl status nvidia-fabricmanager`, and `nvidia-smi -q | grep -A 6 -i "
            "fabric` must say Completed and Success.",
            "`nvidia-smi nvlink -s`; `nvidia-smi topo -p2p n`; `NCCL_P2P_*` in an /etc/nccl.conf.",
            "A good run takes it back; the next one comes after `spec.probes.nccl.recheck`, then ever later.",
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.PAIR_SLOW,
        title="the link between two GPUs is slow",
        meaning=(
            "Copies between two GPUs are slower than between the other pairs that have as many NVLinks. One "
            "such pair slows a ring over all GPUs, and a collective alone does not say where."
        ),
        when={
            Severity.WARN: (
                "one way of a pair is below `pairShare` (default 0.8) of the median of the pairs with as "
                "many NVLinks, or below `pairLinkShare` (default 0.5) of what its NVLinks carry"
            )
        },
        next_step="run `nvidia-smi nvlink -e -i INDEX` for both GPUs: errors show the bad link.",
        way_out=(
            "`nvidia-smi nvlink -s -i INDEX` and `nvidia-smi nvlink -e -i INDEX` for both GPUs. "
            + DRIVER_LOG,
            "Where one GPU is in every slow pair it is that board (or its bridge), not the other ends.",
            "Power off; reseat the bridge or the board. " + VENDOR,
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.FEWER_GPUS,
        title="fewer GPUs were measured than the node has",
        meaning=(
            "The benchmark got fewer GPUs than the node should have, and measured those. It is graded as a "
            "node with so many; the labels say what they reach together."
        ),
        when={Severity.WARN: "fewer ranks than the node's capacity of nvidia.com/gpu"},
        next_step="`kubectl describe node NODE`: allocatable below capacity means an unhealthy GPU.",
        way_out=(
            "`kubectl describe node NODE` and the device plugin's log say which GPU it calls unhealthy.",
            DRIVER_LOG,
            "The health findings of this node (`gpu-lost`, `xid`, `reset-required`) say what it has.",
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.NCCL_INCOMPLETE,
        title="a part of the benchmark is missing",
        meaning=(
            "Time, memory or room ran out, or the pod's CPU limit stalled launches, so that some numbers "
            "were not measured or are not believed. Labels are for 1 GiB; from 256 MiB on a smaller size "
            "stands in for it (83 and 90 per cent of full speed have been published there, so it claims "
            "too little rather than too much), and below that there is none."
        ),
        when={
            Severity.INFO: "sizes, arms or the pair matrix are missing, or latencies are not to be believed",
            Severity.WARN: "all_reduce was not measured at 1 GiB",
        },
        next_step="raise the deadline or the memory limit if it comes again.",
        way_out=(
            REPORT,
            "`spec.probes.nccl.deadline` and `spec.podTemplate.ncclResources` of the policy. A CPU limit "
            "stalls the threads that feed NCCL: request cores, set no limit.",
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.NOT_GRADABLE,
        title="these numbers cannot be graded",
        meaning=(
            "Expectations are for one node. Numbers of several nodes depend on the network between them, and "
            "say nothing of any one of them. The verdict is then unknown. Also said where no row and no rule "
            "fits, which leaves the verdict to what else was found."
        ),
        when={
            Severity.INFO: (
                "more than one node took part; or there is neither a row nor a rule for what was measured"
            )
        },
        next_step="measure one node alone, or give the policy a row for it (`spec.expectations`).",
        way_out=(
            "One node: `all_reduce_perf -g COUNT` without mpirun, or `nodegauge judge` on a log of one.",
            "A row in `spec.expectations` of the policy grades the last result without a new run.",
        ),
        probe=Probe.NCCL,
    ),
)
