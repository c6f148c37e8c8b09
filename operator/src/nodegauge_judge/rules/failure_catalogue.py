"""What statements in pasted text mean, how bad they are, and what to do: the data behind `rules/stated.py`.

Sources: NVIDIA's Xid catalogue, Fabric Manager User Guide (DU-09883-001, appendix D: fatal and non-fatal
SXids) and DCGM user guide; the CUDA driver API's description of each CUresult; kernel and nvidia-smi messages
as forums explain them.  A failure of software that keeps a GPU from work fails like one of hardware: whoever
schedules onto that node meets it.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract.paste import StatementKind
from nodegauge_judge.model import Severity


class Failure(Struct, frozen=True):
    """One kind of statement: its rule's code, its severity, what it means, and what to do."""

    code: str
    severity: Severity
    meaning: str
    advice: str


DRIVER, FABRIC, PROGRAM, TEST, MACHINE = (
    "driver-failure", "fabric-failure", "program-failure", "test-failed", "machine-failure",
)  # fmt: skip
_FAIL, _WARN, _INFO = Severity.FAIL, Severity.WARN, Severity.INFO
_REBOOT = (
    "save `nvidia-bug-report.sh` output, stop all work on the node and reboot it; if it returns, reseat or "
    "replace the board"
)
_SAME_VERSION = (
    "install driver, libraries and fabric manager of one version, then reload the modules or reboot"
)
_READ_LOG = "read the kernel log: `dmesg | grep -iE 'NVRM|Xid'`"

FAILURES: dict[str, Failure] = {
    StatementKind.FALLEN_OFF: Failure(DRIVER, _FAIL, "a GPU does not answer on PCIe", _REBOOT),
    StatementKind.RESET_REQUIRED: Failure(
        DRIVER,
        _FAIL,
        "a GPU waits for a reset",
        "save the logs, then reset it with `nvidia-smi --gpu-reset`, or reboot",
    ),
    StatementKind.NVLINK_FATAL: Failure(
        DRIVER, _FAIL, "an NVLink failed", "save the logs, then reset the GPU; if it returns, check both ends"
    ),
    StatementKind.INIT_FAILED: Failure(DRIVER, _FAIL, "the driver cannot initialise a GPU", _REBOOT),
    StatementKind.BAR_INVALID: Failure(
        DRIVER,
        _FAIL,
        "the firmware gave a GPU no memory window (BAR)",
        "in the BIOS turn on `Above 4G Decoding` and `Resizable BAR`, or update the BIOS; else `pci=realloc`",
    ),
    StatementKind.GSP_FAILED: Failure(DRIVER, _FAIL, "the firmware of a GPU does not answer", _REBOOT),
    StatementKind.NOT_LOADED: Failure(
        DRIVER,
        _FAIL,
        "the kernel module of the driver is not loaded, or does not answer",
        "`lsmod | grep nvidia`, `modprobe nvidia`, and `dmesg | tail` for the reason; after a kernel update "
        "build the module again (`dkms status`)",
    ),
    StatementKind.MISMATCH: Failure(
        DRIVER,
        _FAIL,
        "library and kernel module of the driver have different versions",
        "reload the modules or reboot: the driver was updated under a running module, or is installed twice",
    ),
    StatementKind.NVML_FAILED: Failure(
        DRIVER,
        _FAIL,
        "the driver's library cannot start",
        "run `nvidia-smi` on the host: if it works there, restart the container; else " + _READ_LOG,
    ),
    StatementKind.NO_DEVICES: Failure(
        DRIVER, _FAIL, "the driver finds no GPU", "`lspci -d 10de:` shows what is on the bus; " + _READ_LOG
    ),
    StatementKind.FEWER_GPUS: Failure(
        DRIVER,
        _WARN,
        "fewer GPUs in nvidia-smi than in other output",
        "find the one that is missing: `lspci -d 10de:`, `nvidia-smi -L`, `dmesg | grep -iE 'NVRM|Xid'`",
    ),
    StatementKind.NOT_FOUND: Failure(
        DRIVER,
        _WARN,
        "nvidia-smi is not there",
        "install the driver; in a container, give it the GPUs and the driver's tools (capability `utility`)",
    ),
    StatementKind.DEVICE_HANDLE: Failure(
        DRIVER, _FAIL, "nvidia-smi cannot open a GPU that it lists", _REBOOT
    ),
    StatementKind.ERR_CELL: Failure(DRIVER, _FAIL, "the driver cannot read a GPU that it lists", _REBOOT),
    StatementKind.ERR_VALUE: Failure(
        DRIVER,
        _WARN,
        "nvidia-smi cannot read a value of a GPU",
        "`nvidia-smi -q -i INDEX` names it; look whether its fans turn, and " + _READ_LOG,
    ),
    StatementKind.INFOROM: Failure(
        DRIVER, _WARN, "the infoROM of a GPU is corrupted", "ask the vendor; ECC and limits may be lost"
    ),
    StatementKind.UNHEALTHY_DEVICE: Failure(
        DRIVER, _WARN, "the device plugin took a GPU away", "look up the Xid that it names; " + _READ_LOG
    ),
    StatementKind.DRIVER_LINE: Failure(
        DRIVER, _INFO, "the driver logged a line with an error that is not known here", "look it up"
    ),
    StatementKind.NOT_JUDGED: Failure(
        DRIVER, _INFO, "output that is known here and not judged", "paste `nvidia-smi -q` instead"
    ),
    StatementKind.SXID_FATAL: Failure(
        FABRIC,
        _FAIL,
        "an NVSwitch reports a fatal error",
        "look for an Xid of a GPU just before it, which may be the cause; else reset GPUs and NVSwitches, or "
        "reboot",
    ),
    StatementKind.SXID: Failure(
        FABRIC, _WARN, "an NVSwitch reports a non-fatal error", "watch for more of them at the same port"
    ),
    StatementKind.FM_MISMATCH: Failure(
        FABRIC, _FAIL, "the fabric manager has another version than the driver", _SAME_VERSION
    ),
    StatementKind.FM_FAILED: Failure(
        FABRIC, _FAIL, "the fabric manager does not run", "`journalctl -u nvidia-fabricmanager` says why"
    ),
    StatementKind.FABRIC_NOT_READY: Failure(
        FABRIC,
        _FAIL,
        "CUDA cannot start: the GPUs are not registered with their NVLink fabric (error 802)",
        "`systemctl status nvidia-fabricmanager`: it must run, in the same version as the driver; in a "
        "virtual machine it runs on the host",
    ),
    StatementKind.FABRIC_LOST: Failure(
        FABRIC,
        _FAIL,
        "the driver and the NVLink fabric no longer agree",
        "stop all work, restart the fabric manager, and reset all GPUs or reboot",
    ),
    StatementKind.LINK_DOWN: Failure(
        FABRIC,
        _FAIL,
        "NVLinks are down",
        "`nvidia-smi nvlink -s`; reset all GPUs; if it returns, reseat or replace",
    ),
    StatementKind.LINK_OFF: Failure(
        FABRIC,
        _WARN,
        "NVLinks are off",
        "compare with what the board has; a missing bridge looks like this too",
    ),
    StatementKind.LINKS_ALL_OFF: Failure(
        FABRIC,
        _INFO,
        "no NVLink is active on any GPU; on a whole board with NVSwitches that fails",
        "`systemctl status nvidia-fabricmanager`, " + _READ_LOG + ", then reset all GPUs or reboot",
    ),
    StatementKind.LINK_FAULTS: Failure(
        FABRIC,
        _WARN,
        "NVLinks sent again, recovered or received faulty packets since the driver was loaded",
        "read them again after some minutes under load: growth counts",
    ),
    StatementKind.LINK_ERRORS: Failure(
        FABRIC,
        _WARN,
        "NVLinks count CRC errors since the driver was loaded; some may be old",
        "read them again after some minutes under load: growth counts",
    ),
    StatementKind.CUDA_ECC: Failure(
        PROGRAM,
        _FAIL,
        "a program met an uncorrectable memory error",
        "find the GPU with `nvidia-smi -q -d ECC,ROW_REMAPPER`, and reset it before it is used again",
    ),
    StatementKind.CUDA_NVLINK: Failure(
        PROGRAM, _FAIL, "a program met an uncorrectable NVLink error", _READ_LOG + ", and reset all GPUs"
    ),
    StatementKind.CUDA_FAILED: Failure(
        PROGRAM, _WARN, "a program cannot use CUDA", "run `nvidia-smi` there; " + _READ_LOG
    ),
    StatementKind.NCCL_FAILED: Failure(
        PROGRAM,
        _WARN,
        "a collective of NCCL failed or did not end",
        "find the first rank that failed; `NCCL_DEBUG=INFO` logs why; " + _READ_LOG,
    ),
    StatementKind.NETWORK_FAILED: Failure(
        PROGRAM,
        _FAIL,
        "a transfer over the network failed: its other end died or cannot be reached",
        "look at the peer that it names, then at the NIC, its cable and its switch port: `ibstat`",
    ),
    StatementKind.CUDA_PROGRAM: Failure(
        PROGRAM,
        _INFO,
        "a program ended with an error of its own, as far as this text shows",
        "run it with `compute-sanitizer`; if healthy programs fail too, read the kernel log",
    ),
    StatementKind.TEST_FAILED: Failure(
        TEST,
        _FAIL,
        "a test of the GPUs failed",
        "do what its own words say, and run it again on the idle GPU",
    ),
    StatementKind.TEST_WARNED: Failure(
        TEST, _WARN, "a test warned, or found a setting that it does not want", "do what its own words say"
    ),
    StatementKind.WRONG_RESULTS: Failure(
        TEST,
        _FAIL,
        "a GPU computed wrong results",
        "take it out of service; run the test again alone, then replace",
    ),
    StatementKind.PCIE_NARROW: Failure(
        MACHINE,
        _WARN,
        "the PCIe link of a GPU has fewer lanes than it could have",
        "some boards wire a slot so; else reseat the card and its riser, and look for bent pins",
    ),
    StatementKind.NIC_DOWN: Failure(
        MACHINE, _WARN, "a NIC lost its link", "check cable, transceiver and switch port; `ip -s link`"
    ),
    StatementKind.SUPPLY: Failure(
        MACHINE,
        _WARN,
        "a power supply is out",
        "check its input and the supply; `nodegauge bmc` reads the BMC",
    ),
    StatementKind.FAN: Failure(
        MACHINE, _WARN, "a fan is out", "check the fan; `nodegauge bmc` reads the BMC"
    ),
}

IGNORED_SXIDS = frozenset({22013})
"""Non-fatal SXids that the Fabric Manager User Guide (D.4) calls safe to ignore: 22013, Minion Link DLREQ."""
LINK_ERRORS = 10
"""CRC errors of one NVLink above which a first reading warns.  Chosen by this project: counters run since the
driver was loaded, and a healthy link has a few.  Of other errors NVIDIA's DCGM tolerates none (ADR 0038)."""


def failure_of(kind: str) -> Failure:
    """What a kind means; one that this version does not know warns."""
    return FAILURES.get(kind, Failure(DRIVER, _WARN, f"the text states `{kind}`", "read its line"))
