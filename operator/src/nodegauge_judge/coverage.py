"""What a reading covers: for each subject what should have been read of each GPU, and what was.

A pass needs all of it.  A value should have been read if

- another GPU of the same model gave it,
- this node gave it earlier under the same driver, or
- every physical GPU of a known model has it (`ALWAYS`).

What no GPU of a model has (NOT_SUPPORTED on all alike) is no gap.  Nor is a value that the driver refuses by
a setting: ECC counts with ECC off, values of the whole GPU with MIG on, and what a
vGPU lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from zlib import crc32

from msgspec import Struct

from nodegauge_contract import NOT_READ, Gpu, Unavailable
from nodegauge_contract.gpu import Clocks, Counters, Ecc, LinkErrors, Pcie, Power, Repair, Temperature
from nodegauge_contract.model import PASTED
from nodegauge_contract.nvlink import ACTIVE
from nodegauge_judge import visibility
from nodegauge_judge.case import Case, clip, is_not_supported, once, short_name, text
from nodegauge_judge.gpu_models import NO_ROW, known_models
from nodegauge_judge.interconnect import board, nvlink_state
from nodegauge_judge.model import NOT_READABLE, Coverage


def _fields(member: str, struct: type[Struct], *, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    return tuple(f"{member}.{name}" for name in struct.__struct_fields__ if name not in without)


SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "identity": (
        "uuid",
        "name",
        "pci",
        "serial",
        "vbios",
        "memory_mib",
        "mig",
        "compute_mode",
        "virtualization",
    ),
    "temperature": _fields("temperature", Temperature),
    "power": _fields("power", Power),
    "clocks": _fields("clocks", Clocks),
    "throttle reasons": (
        "events.supported",
        "events.read",
        *_fields("counters", Counters, without=("trio",)),
    ),
    "memory errors": _fields("ecc", Ecc),
    "memory repairs": _fields("repair", Repair),
    "NVLink": ("switch_links", "fabric.state", *_fields("link_errors", LinkErrors)),
    "PCIe": _fields("pcie", Pcie, without=("utilization",)),
    "Xids": ("xids.registered",),
}
"""The values of each subject, as paths into `Gpu`."""
NVLINK, P2P = "NVLink", "P2P"
"""Subjects whose values depend on the links that are there: for them NOT_SUPPORTED is an answer."""
ALWAYS = frozenset({"name", "temperature.gpu", "power.usage_mw", "clocks.sm_mhz", "events.read"})
"""What NVML has of every physical GPU of the table (nvml.h: "For all products" to "For Kepler or newer")."""
VALUES = tuple(value for values in SUBJECTS.values() for value in values)
"""Every value; its position is its bit in `History.answered`."""
_VALUES_DIGEST = f"{crc32(' '.join(VALUES).encode()):08x}."
"""Marks bits as those of this list."""
_WINDOW = {
    "temperature": ("window.temperature", "window.memory_temperature"),
    "power": ("window.power_mw",),
    "clocks": ("window.sm_mhz", "window.pstate"),
    "utilization": ("window.utilization",),
}
"""Samples of the window by subject: compared with siblings alone, because not every reading has a window."""
PART = ". "
"""Between the parts of a line; each begins with its kind's title and counts."""
_PARTS = re.compile(rf"{re.escape(PART)}(?=\w+: \d+ of \d)")
_NO_VALUE = "N/A"
"""What nvidia-smi prints where NVML answers NOT_SUPPORTED."""
_GETTERS = {
    path: attrgetter(path) for groups in (SUBJECTS, _WINDOW) for paths in groups.values() for path in paths
}
_ECC_COUNTS = frozenset(SUBJECTS["memory errors"]) - {"ecc.mode"}
"""What the driver refuses with ECC off."""


class Gap(Struct, frozen=True, kw_only=True):
    """One value that should have been read and was not."""

    gpu_index: int
    """Position of its GPU in `result.gpus`."""
    subject: str
    """One of `SUBJECTS`, or P2P."""
    value: str
    """What is missing."""
    why: str
    """The driver's answer."""
    against: str
    """Why it should be there, as the end of a sentence."""


@once
def gaps(case: Case) -> list[Gap]:
    """All gaps of GPUs that were read; none if the run was cut off, which has a finding of its own."""
    if case.result.problem is not None:
        return []
    missing = [gap for gpu_index in _read(case) for gap in _of_gpu(case, gpu_index)]
    return missing + list(_of_links(case)) + list(_of_pairs(case))


def of_node(case: Case) -> Coverage:
    """The coverage of a whole reading."""
    read, missing = _read(case), gaps(case)
    unclear = {(gpu_index, NVLINK) for gpu_index in nvlink_state.uncertain(case)}
    open_subjects = {(gap.gpu_index, gap.subject) for gap in missing} | unclear
    there = {subject for gpu_index in read for subject in _answered_subjects(case, gpu_index)}
    there |= {subject for _, subject in open_subjects}
    if case.result.pairs.read and len(read) > 1:
        there.add(P2P)
    every_subject = dict.fromkeys((*SUBJECTS, *_WINDOW, P2P))
    log = case.result.kernel_log
    asked, answers = log is not None, log is not None and not log.unread
    expected = (len(case.result.gpus), len(case.history.gpus), case.node.expected_gpus or 0)
    return Coverage(
        gpus=len(read),
        of_gpus=max(expected),
        stated=case.node.expected_gpus or visibility.whole_board(case),
        subjects=len(there - {subject for _, subject in open_subjects}) + answers,
        of_subjects=len(there) + asked,
        gaps=[
            f"{short_name(case.result.gpus[gpu_index])}: {', '.join(subjects)}"
            for gpu_index in range(len(case.result.gpus))
            if (subjects := [name for name in every_subject if (gpu_index, name) in open_subjects])
        ]
        + ["node: kernel log"] * (asked and not answers),
    )


def remembered(case: Case) -> str:
    """For the history: the values that every GPU gave, now or before under this driver."""
    unread, before = _unread(case), _answered_before(case)
    answered = (path in before or not any(path in values for values in unread) for path in VALUES)
    return f"{_VALUES_DIGEST}{sum(given << bit for bit, given in enumerate(answered)):x}"


def still_says(shown: str, now: str) -> bool:
    """Whether an older line (`Coverage.text`) is still true enough to stay: nothing that it calls read is
    missing now, and not all that it calls missing has come back.  A line has parts: of GPUs, of a BMC."""
    parts, parts_now = _PARTS.split(shown), _PARTS.split(now)
    return len(parts) == len(parts_now) and all(map(_part_says, parts, parts_now))


def _part_says(shown: str, now: str) -> bool:
    (counts, missing), (counts_now, missing_now) = _in_line(shown), _in_line(now)
    fewer = any(
        less < before
        for kind, pair in counts.items()
        for before, less in zip(pair, counts_now.get(kind, (-1, -1)), strict=True)
    )
    return not fewer and missing_now <= missing and bool(missing_now) == bool(missing)


def _in_line(line: str) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """How many were read of how many, by kind, and each subject of each GPU that is missing."""
    counts, _, gaps = line.partition(NOT_READABLE)
    named = [gap.partition(": ") for gap in gaps.split("; ") if gap]
    missing = {f"{where}: {subject}" for where, _, subjects in named for subject in subjects.split(", ")}
    listed = re.findall(r"(\d+) of (\d+) (\w+)", counts)
    return {kind: (int(read), int(expected)) for read, expected, kind in listed}, missing


@once
def _answered_before(case: Case) -> frozenset[str]:
    """What every GPU gave in an earlier run under this driver, by the same list of values."""
    driver, text_of = text(case.result.system.driver), case.history.answered
    if not driver or case.history.driver != driver or not text_of.startswith(_VALUES_DIGEST):
        return frozenset()
    digits = text_of.removeprefix(_VALUES_DIGEST)
    bits = int(digits, 16) if re.fullmatch("[0-9a-f]{1,64}", digits) else 0
    return frozenset(path for bit, path in enumerate(VALUES) if bits >> bit & 1)


def _read(case: Case) -> list[int]:
    return [gpu_index for gpu_index, gpu in enumerate(case.result.gpus) if gpu.error is None]


def _of_gpu(case: Case, gpu_index: int) -> Iterator[Gap]:
    unread = _unread(case)[gpu_index]
    known = _given(case, _model(case.result.gpus[gpu_index])) | _answered_before(case) | ALWAYS
    for subjects in (SUBJECTS, _WINDOW):
        for subject, paths in subjects.items():
            for path in paths:
                value = unread.get(path) if path in known else None
                if value is not None and (against := _expected(case, gpu_index, path, value)):
                    yield Gap(
                        gpu_index=gpu_index,
                        subject=subject,
                        value=path,
                        why=clip(value.unavailable),
                        against=against,
                    )


def _expected(case: Case, gpu_index: int, path: str, value: Unavailable) -> str:
    """Why this value should have been read; empty if it need not."""
    gpu = case.result.gpus[gpu_index]
    nothing_there = is_not_supported(value) or value.unavailable == _NO_VALUE
    refused = path in _ECC_COUNTS and gpu.ecc.mode == 0
    hidden = nothing_there and (gpu.mig == 1 or bool(board.shared(gpu)) or path in SUBJECTS[NVLINK])
    linkless = path.startswith("link_errors.") and not case.lanes.sums[gpu_index]
    if refused or hidden or linkless or (case.result.probe == PASTED and value == NOT_READ):
        return ""
    if path in _given(case, _model(gpu)):
        return "other GPUs of its model give them"
    if path in _answered_before(case):
        return "it gave them before"
    known = known_models().find(gpu.name) is not NO_ROW
    return "every GPU of its model gives them" if known and path in ALWAYS and _is_live(case) else ""


def _of_links(case: Case) -> Iterator[Gap]:
    """Active links whose rate the driver fails to give (`nvlink-unresolved`: unknown state or far end)."""
    for gpu_index in _read(case):
        for group in case.result.gpus[gpu_index].links:
            if group.state == ACTIVE and _failed(group.mbps) and _is_live(case):
                yield Gap(
                    gpu_index=gpu_index,
                    subject=NVLINK,
                    value="links.mbps",
                    why=_why(group.mbps),
                    against="every active link has a rate",
                )


def _of_pairs(case: Case) -> Iterator[Gap]:
    """P2P statuses that the driver fails to give between GPUs without links; those with links are
    `nvlink-unresolved`."""
    if board.hides_links(case) or not _is_live(case):
        return
    read, linked = set(_read(case)), {frozenset((pair.i, pair.j)) for pair in case.p2p}
    for name in ("read", "write", "nvlink", "ancestor"):
        for i, row in enumerate(getattr(case.result.pairs, name)):
            for j, status in enumerate(row):
                if _failed(status) and {i, j} <= read and frozenset((i, j)) not in linked:
                    yield Gap(
                        gpu_index=i,
                        subject=P2P,
                        value=f"pairs.{name}",
                        why=_why(status),
                        against="the driver knows each pair",
                    )


@once
def _unread(case: Case) -> list[dict[str, Unavailable]]:
    """The values that each GPU did not give, with the driver's answers."""
    values = ({path: _raw(gpu, path) for path in _GETTERS} for gpu in case.result.gpus)
    return [{path: value for path, value in of.items() if isinstance(value, Unavailable)} for of in values]


@once
def _given(case: Case, model: str | None) -> frozenset[str]:
    """The values that a GPU of this model gave; None: that any GPU gave."""
    pairs = zip(case.result.gpus, _unread(case), strict=True)
    unread = [values for gpu, values in pairs if model is None or gpu.name == model]
    return frozenset(path for path in _GETTERS if not all(path in values for values in unread))


def _model(gpu: Gpu) -> str | None:
    return gpu.name if isinstance(gpu.name, str) else None


def _is_live(case: Case) -> bool:
    return case.result.probe != PASTED


def _answered_subjects(case: Case, gpu_index: int) -> Iterator[str]:
    unread = _unread(case)[gpu_index]
    for subject, paths in (*SUBJECTS.items(), *_WINDOW.items()):
        if not all(path in unread for path in paths):
            yield subject


def _failed(value: object) -> bool:
    return isinstance(value, Unavailable) and not is_not_supported(value)


def _why(value: object) -> str:
    return clip(value.unavailable) if isinstance(value, Unavailable) else ""


def _raw(gpu: Gpu, path: str) -> object:
    if gpu.window is None and path.startswith("window."):
        return NOT_READ
    value = _GETTERS[path](gpu)
    return NOT_READ if value is None else value
