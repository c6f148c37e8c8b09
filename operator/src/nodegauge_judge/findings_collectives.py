"""Rows of the findings catalogue about collectives: how the benchmark's processes ended, and wrong data."""

from __future__ import annotations

from nodegauge_judge.entry import Code, Entry
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import Probe
from nodegauge_judge.rules.steps import DRAIN, DRIVER_LOG, OWN_RUN, REBOOT, VENDOR

_PEER = (
    "In the BIOS switch ACS off on the PCIe bridges above the GPUs and set the IOMMU off or to pass-through "
    "(`iommu=pt` on the kernel's command line); `lspci -vvv | grep -i acsctl` shows what is on."
)

COLLECTIVE_ENTRIES = (  # of one cause the first speaks: what says more stands first
    Entry(
        code=Code.NCCL_WRONG_DATA,
        title="a collective returned wrong data",
        meaning=(
            "The sum that came out of a collective was not the sum of what went in. A training job on this "
            "node computes garbage without an error, however fast it is."
        ),
        when={Severity.FAIL: "any element of any checked collective was wrong"},
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NCCL, runs=1),
        next_step="take the node out of use now; distrust what ran on it since the last good run.",
        way_out=(
            DRAIN,
            "Wrong only with peer access (`p2p-broken` stands beside it): " + _PEER,
            "Wrong in every arm: a GPU or memory. `nvidia-smi -q -d ECC,ROW_REMAPPER`; `dcgmi diag -r 3`.",
            DRIVER_LOG + " " + REBOOT,
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.P2P_BROKEN,
        title="peer access between GPUs is broken",
        meaning=(
            "NCCL hangs or returns wrong data with peer access and works without it. That is what ACS "
            "(access control services of PCIe bridges) and an IOMMU that translates do to traffic between "
            "GPUs: it goes astray, or through the root complex and back."
        ),
        when={
            Severity.FAIL: (
                "the default arm hung or returned wrong data, and the arm without peer access was fine"
            )
        },
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NCCL),
        next_step="switch off ACS and the IOMMU (or set it to pass-through) in the BIOS.",
        way_out=(
            _PEER,
            "In a virtual machine the host must do this; ask the provider.",
            "`NCCL_P2P_DISABLE=1` in the jobs is a way round it, at the price of the host path's bandwidth.",
            DRIVER_LOG,
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.NCCL_HANG,
        title="a collective hangs",
        meaning=(
            "The benchmark's child said nothing for longer than its phase may take, and was killed. The "
            "message names arm and phase. A job would hang here too, until somebody notices."
        ),
        when={
            Severity.FAIL: (
                "an arm was killed in silence: 90 s for starting, making communicators and loading kernels, "
                "45 s for measuring, 10 s for ending"
            )
        },
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NCCL),
        next_step="look for an Xid or a lost GPU on the node: `dmesg | grep -iE 'NVRM|Xid'`.",
        way_out=(
            DRIVER_LOG,
            "NVSwitch machines: `systemctl status nvidia-fabricmanager`; restart it with no job running.",
            OWN_RUN,
            "If only this node hangs: drain it and reboot. " + VENDOR,
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.NVLS_BROKEN,
        title="NVLink SHARP does not work",
        meaning=(
            "NCCL cannot start with NVLS (reductions inside the NVSwitches) and works without it. Jobs on "
            "this node fail or hang at their start unless they set `NCCL_NVLS_ENABLE=0`, and are slower "
            "then. all_reduce is taken from the arm without NVLS."
        ),
        when={
            Severity.WARN: (
                "the default arm failed or hung before measuring, and the arm with NVLS off was fine"
            )
        },
        next_step="restart the fabric manager with no job running; till then jobs need `NCCL_NVLS_ENABLE=0`.",
        way_out=(
            "`systemctl status nvidia-fabricmanager`; its version must equal the driver's.",
            "`nvidia-smi -q | grep -A 6 -i fabric` must say Completed and Success on every GPU.",
            "Multicast memory left over from killed jobs: with nothing running, reset all GPUs or reboot.",
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.NCCL_FAILED,
        title="the benchmark could not be run to its end",
        meaning=(
            "An arm ended with an error of NCCL or CUDA, crashed, ran out of memory, or said what nobody can "
            "read. Nothing is proven about the hardware: image, driver and memory limit are as likely. What "
            "had been measured until then counts."
        ),
        when={
            Severity.WARN: "an arm ended in any way but well, being cut short, or hanging",
        },
        next_step="read the words of the message; the pod's log has the rest.",
        way_out=(
            "`kubectl logs -n NAMESPACE PROBE-POD` while the pod exists.",
            "`P2P is disabled between NVLINK connected GPUs`: the fabric manager or a registry key refuses "
            "peer access, see `p2p-refused`.",
            "Out of memory: raise the limit in `spec.podTemplate.ncclResources`, or see who uses the GPUs "
            "(`nvidia-smi`).",
            "A driver too old for the image's CUDA: `nvidia-smi` shows the driver, the result document the "
            "versions of NCCL and CUDA.",
        ),
        probe=Probe.NCCL,
    ),
    Entry(
        code=Code.SLOW_INIT,
        title="NCCL takes long to start",
        meaning=(
            "Making communicators and loading kernels took long. Every start of a job pays it. The first "
            "start from a cold image is slow anywhere (library and kernels come from disk), so it is only "
            "mentioned where a later arm of the same run started fast."
        ),
        when={
            Severity.INFO: "only the first arm took more than `slowInitSeconds` (default 15)",
            Severity.WARN: "no arm that got to measuring took less than that",
        },
        next_step="see what it waits for: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT` with times in front.",
        way_out=(
            "`nvidia-smi -pm 1` (persistence): without it every first client initialises the GPUs.",
            "A slow disk or an image that is unpacked late: compare `spawn_ms` and `load_ms` of the arms.",
            "Name resolution or a firewall between sidecars: NCCL needs the loopback device alone here.",
        ),
        probe=Probe.NCCL,
    ),
)
