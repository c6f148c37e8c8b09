"""What a node has beside its GPUs: what a load run measured of it, what of that stands, and the labels."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Bus, Result, Storage, Unavailable
from nodegauge_judge.loadtest_rules.judge import judge_load
from nodegauge_operator import names
from nodegauge_operator.api.offload_status import OffloadStatus
from nodegauge_operator.api.quantity import quantity
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.offload import LABELS
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_probes.settings import parse
from support.load_results import everywhere, gpu, loaded, spoilt
from support.nccl_nodes import INSTALLED, PREEMPTED
from support.objects import (
    NOW,
    ANode,
    APolicy,
    AReport,
    make_context,
    make_node,
    make_policy,
    make_report,
    read,
)

LOAD, WEEK = names.PROBE_LOAD, 7 * 86_400.0
NODE: ANode = replace(make_node().offering(8), cpu_allocatable="95500m", memory_allocatable="1056302388Ki")
PATH = "/mnt/nvme/nodegauge"
DISK = Storage(path=PATH, read_gbps=26.94, write_gbps=11.2)
DEFAULT: APolicy = make_policy()
NVME: APolicy = make_policy().of({"probes": {"load": {"nvme": {"path": PATH}}}})
KEYS = [names.PREFIX + of for of in ("h2d-gbps", "host-memory-per-gpu", "cores-per-gpu", "nvme-read-gbps")]
COUNTED = ["125", "11"]
UNREAD = Unavailable("not read")


def stored(**values: Any) -> Result:
    return loaded(storage=replace(DISK, **values))


def healthy(node: ANode = NODE, result: Result | None = None) -> AReport:
    return make_report(node).after(read(result or made.h100()), node=node)


def ran(*ends: Result | RunEnd, node: ANode = NODE, policy: APolicy = DEFAULT) -> AReport:
    report = healthy(node)
    for number, end in enumerate(ends):
        end = end if isinstance(end, RunEnd) else read(end)
        report = report.after(end, node=node, probe=LOAD, policy=policy, at=NOW + number)
    return report


def seen(report: AReport, *, node: ANode = NODE, policy: APolicy = DEFAULT, at: float = NOW) -> AReport:
    return report.seen(node=node, policy=policy, at=at)


def labels(report: AReport) -> list[str]:
    return [report.status.desired.labels.get(key, "") for key in KEYS]


@pytest.mark.parametrize(
    ("result", "alone", "together", "problem"),
    [
        (loaded(), 54.0, 52.0, ""),
        (spoilt(h2d_gbps=20.125, h2d_all_gbps=9.87654), 20.12, 9.877, ""),
        (spoilt(h2d_all_gbps=UNREAD), 54.0, None, "no rate of GPU 3"),
        (spoilt(h2d_gbps=UNREAD), None, 52.0, "no rate of GPU 3"),
        (spoilt(h2d_all_gbps=1e30), 54.0, None, "no rate of GPU 3"),
        (everywhere(h2d_all_gbps=-1, of=2), 54.0, None, "no rate of GPU 0, GPU 1"),
        (loaded(*(gpu(n, mismatches=1) for n in range(7)), expected=8), None, None, "7 of 8 GPUs"),
    ],
)  # fmt: skip
def test_the_slowest_gpu_counts_and_one_without_a_rate_leaves_none(
    result: Result, alone: float | None, together: float | None, problem: str
) -> None:
    measured = judge_load(result).offload
    assert (measured.h2d_gbps, measured.h2d_all_gbps) == (alone, together)
    assert measured.h2d_problem.startswith(problem)
    assert bool(measured.h2d_problem) == bool(problem)


@pytest.mark.parametrize(
    ("storage", "rate", "problem"),
    [
        (DISK, 26.94, ""),
        (replace(DISK, problem="nvme0n1 rotates"), None, "nvme0n1 rotates"),
        (replace(DISK, read_gbps=1e30), None, "it gave no plausible rate"),
        (replace(DISK, read_gbps=UNREAD, problem="make it\n\x1b[31m" + "x" * 500), None, "make it ?[31mxxx"),
    ],
)
def test_a_disk_with_a_problem_has_no_rate(storage: Storage, rate: float | None, problem: str) -> None:
    measured = judge_load(loaded(storage=storage)).offload
    assert (measured.nvme_read_gbps, measured.nvme_problem[:16]) == (rate, problem[:16])
    assert len(measured.nvme_problem) <= 400


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("96", 96), ("500m", 0.5), ("1.5k", 1500), ("16Ki", 16384), ("1E", 1e18), ("2e3", 2000), ("+1", 1),
        (".5", 0.5), ("1e30", None), ("-1", None), ("", None), ("Ki", None), ("1 Gi", None), ("0x10", None),
        ("\u0663", None), ("nan", None), ("1e999", None), ("1" * 99, None), ("1Ki\n", None), ("1zz", None),
    ],
)  # fmt: skip
def test_amounts_are_read_as_kubernetes_writes_them(text: str, amount: float | None) -> None:
    assert quantity(text, most=1e20) == amount


def test_labels_say_what_stands() -> None:
    """Rounded down; the share of a GPU does not grow because another one is lost."""
    fresh = seen(ran(stored(), policy=NVME), policy=NVME)
    assert [label.key for label in LABELS] == KEYS
    assert labels(fresh) == ["52", *COUNTED, "26"]
    assert labels(seen(fresh, policy=DEFAULT)) == ["52", *COUNTED, ""]
    seven = replace(made.h100(7), bus=Bus(gpus=[made.pci(n) for n in range(7)]))
    lost = fresh.after(read(seven), node=NODE, policy=NVME, at=NOW + 900)
    assert lost.status.gpus.count == 7
    assert labels(lost) == ["", *COUNTED, ""]
    assert lost.status.offload.h2d_problem.startswith("no load run can be made: a GPU does not answer")
    back = lost.after(read(made.h100()), node=NODE, policy=NVME, at=NOW + 1800)
    assert labels(back) == labels(fresh)


OFF = make_policy().of({"probes": {"load": {"enabled": False}, "health": {"enabled": False}}})


@pytest.mark.parametrize(
    ("report", "policy", "at", "expected", "why"),
    [
        (healthy(), DEFAULT, NOW, ["", *COUNTED, ""], "no load run was made yet"),
        (ran(PREEMPTED), DEFAULT, NOW, ["", *COUNTED, ""], "the last load run gave no result"),
        (ran(loaded(), PREEMPTED), DEFAULT, NOW, ["52", *COUNTED, ""], ""),
        (ran(spoilt(h2d_all_gbps=UNREAD)), DEFAULT, NOW, ["", *COUNTED, ""], "no rate of GPU 3"),
        (ran(loaded()), OFF, NOW + 2 * WEEK, ["52", "", "", ""], ""),
        (ran(loaded()), OFF, NOW + 4 * WEEK, [""] * 4, "load runs are switched off"),
        (make_report(NODE), DEFAULT, NOW, [""] * 4, "no load run was made yet"),
    ],
)  # fmt: skip
def test_what_is_not_known_has_no_label(
    report: AReport, policy: APolicy, at: float, expected: list[str], why: str
) -> None:
    after = seen(report, policy=policy, at=at)
    assert labels(after) == expected
    assert after.status.offload.h2d_problem.startswith(why)
    assert bool(after.status.offload.h2d_problem) == bool(why)


@pytest.mark.parametrize(
    ("cpu", "memory", "expected"),
    [
        ("1e30", "1e30", ["", ""]),
        ("500m", "1Ki", ["0", "0"]),
        ("", "-5", ["", ""]),
        ("64", "512Gi", ["64", "8"]),
    ],
)
def test_odd_amounts_have_no_label(cpu: str, memory: str, expected: list[str]) -> None:
    node = replace(NODE, cpu_allocatable=cpu, memory_allocatable=memory)
    assert labels(seen(healthy(node), node=node))[1:3] == expected


def nvme(report: AReport, policy: APolicy = NVME) -> OffloadStatus:
    return seen(report, policy=policy).status.offload


def test_a_disk_is_the_one_that_the_policy_names_now() -> None:
    again = nvme(ran(stored(), stored(write_gbps=UNREAD), policy=NVME))
    assert (again.nvme_read_gbps, again.nvme_write_gbps, again.nvme_problem) == (26.94, 11.2, "")
    gone = nvme(ran(stored(), stored(read_gbps=UNREAD, write_gbps=UNREAD, problem="gone"), policy=NVME))
    assert (gone.nvme_read_gbps, gone.nvme_write_gbps, gone.nvme_problem) == (None, None, "gone")
    other = make_policy().of({"probes": {"load": {"nvme": {"path": "/mnt/other"}}}})
    moved = nvme(ran(stored(), policy=NVME), other)
    assert (moved.nvme_read_gbps, moved.nvme_write_gbps, moved.nvme_path) == (None, None, "/mnt/other")
    assert moved.nvme_problem == "the last load run did not measure it"


@pytest.mark.parametrize("write", [True, False])
def test_a_load_pod_mounts_the_folder_and_writes_only_where_it_may(write: bool) -> None:
    settings = {"path": PATH, "sizeGib": 8, "duration": "10s", "write": write}
    policy = make_policy().of({"probes": {"load": {"nvme": settings}}})
    context = make_context(node=NODE, policy=policy, defaults=INSTALLED)
    spec = probe_pod(context, KINDS[LOAD], context.next_run(LOAD))["spec"]
    [body] = spec["containers"]
    assert [v["hostPath"] for v in spec["volumes"] if "hostPath" in v] == [{"path": PATH}]
    [mount] = [m for m in body["volumeMounts"] if m["name"] == "nvme"]
    assert mount["readOnly"] is not write
    options = parse([LOAD, *body["args"]], {}, probes=[LOAD], engines=["nccl4py"]).storage
    assert (str(options.folder), options.path) == (mount["mountPath"], PATH)
    assert (options.size, options.seconds, options.write) == (8 << 30, 10.0, write)
