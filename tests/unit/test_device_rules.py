"""A fault of one GPU gates that GPU alone where GPUs come by DRA, and the node where that cannot be told."""

from collections.abc import Hashable
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.desired_device import DeviceState
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.report import Run
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import actions as steps
from nodegauge_operator.core import decision, device_rule, faults
from nodegauge_operator.core.device_rule import DeviceRule
from nodegauge_operator.core.devices import Device, SliceView
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.registry import EVERY
from nodegauge_operator.core.usable import usable
from nodegauge_operator.reconcile.budget_condition import within_budget
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.device_budget import DeviceBudget
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.node_counts import NodeCounters
from support.judge_results import LOST
from support.objects import (
    MINUTE,
    NOW,
    make_context,
    make_node,
    make_policy,
    make_report,
    make_snapshot,
    read,
)

WELL = made.h100()
BAD = made.with_gpu(WELL, 3, error=LOST)
TAINTED = ["nodegauge.dev/unhealthy=gpu-lost"]


def device(number: int, **more: str) -> Device:
    known = {"uuid": made.uuid(number), "pci": made.pci(number), "type": "gpu"} | more
    return Device(driver=names.DRA_DRIVER, pool="node-1", name=f"gpu-{number}", **known)


EIGHT = tuple(device(number) for number in range(8))


class World:
    """One node, its report and its rules; every write succeeds that `refused` does not name."""

    def __init__(self, devices: tuple[Device, ...] = EIGHT, *, setting: str = "NoSchedule") -> None:
        self.node = replace(make_node(), devices=devices)
        self.policy = make_policy().of({"taints": {"devices": setting}})
        self.report = make_report(self.node)
        self.rules: dict[str, DeviceRule] = {}
        self.slots, self.served, self.now, self.runs = 8, True, NOW, 0
        self.refused: tuple[type, ...] = ()
        self.log: list[steps.Step] = []
        self.posted, self.written = ("", ""), None

    def known(self) -> dict[str, Any]:
        ours = {"rules": tuple(self.rules.values()), "device_rules": self.served, "device_slots": self.slots}
        seen = {"node": self.node, "policy": self.policy, "report": self.report, "now": self.now}
        done = {"posted": self.posted, "written": self.written}
        return seen | ours | done | {"granted": frozenset(), "gate_slot": True}

    def run(self, result: Result = BAD, times: int = 1) -> "World":
        """Health runs with this result, and all writes that follow."""
        for _ in range(times):
            self.runs, self.now = self.runs + 1, self.now + 15 * MINUTE
            run = Run(number=self.runs, pod_uid=f"uid-{self.runs}", started_at=stamp(self.now - 5))
            ended = EndedRun(run=run, end=read(result))
            self.look(ended)
        return self

    def look(self, ended: EndedRun | None = None) -> "World":
        """All writes that follow from a run, or from what is known."""
        declined: dict[Hashable, str] = {}
        judged = self._judged(ended, declined)
        while step := next_step(make_snapshot(**self.known(), declined=declined, judged=judged)):
            if isinstance(step, self.refused):
                declined |= {step.key: "denied"}
                judged = self._judged(ended, declined)
                continue
            self.log.append(step)
            assert len(self.log) < 99, f"it does not come to rest: {self.log[-3:]}"
            if isinstance(step, steps.PatchReport):
                ended = judged = None
            self._write(step)
        return self

    def _judged(self, ended: EndedRun | None, declined: dict[Hashable, str]) -> steps.Judged | None:
        if ended is None:
            return None
        status = decision.decide(make_context(**self.known(), declined=declined), EVERY["health"], ended)
        return steps.Judged(self.report.resource_version, status)

    def _write(self, step: steps.Step) -> None:
        match step:
            case steps.PutDeviceRule(_, rule):
                version = str(int(rule.resource_version or "0") + 1)
                self.rules[rule.name] = replace(rule, uid=f"{rule.name}-uid", resource_version=version)
            case steps.DeleteDeviceRule(rule):
                del self.rules[rule.name]
            case steps.PatchNode(node, labels, taints):
                self.node = node.patched(labels, taints)
            case steps.SetCondition(_, condition):
                self.node = replace(self.node, condition=condition)
            case steps.PatchReport(_, status):
                self.report = replace(self.report, status=status)
            case steps.PostEvent(_, change):
                self.posted = (change.run, change.reason)
            case steps.WriteHistory():
                self.written = step.written

    @property
    def ruled(self) -> dict[str, tuple[str, str]]:
        """Cause and effect by device."""
        return {rule.selector[2]: rule.taint[1:] for rule in self.rules.values()}

    @property
    def taints(self) -> list[str]:
        return [f"{taint.key}={taint.value}" for taint in self.node.taints]

    @property
    def fault(self) -> Fault:
        """The worst."""
        return faults.faults(self.report.status, policy=self.policy, node="node-1")[0]

    @property
    def drains_at_once(self) -> bool:
        """Whether its steps are those of a node without device rules."""
        return any(step.startswith("`kubectl cordon") for step in self.fault.steps)


def test_one_bad_gpu_of_eight_is_gated_with_its_cause_and_the_node_keeps_seven() -> None:
    world = World().run(WELL).run()
    assert (world.ruled, world.taints) == ({"gpu-3": ("gpu-lost", "NoSchedule")}, [])
    (rule,) = world.rules.values()
    (gate,) = world.report.status.gates
    assert (rule.node, rule.finding, rule.uuid) == ("node-1", "gpu-lost", made.uuid(3))
    assert rule.since == gate.fault_at
    assert (world.node.labels[names.LABEL_HEALTH], world.node.condition.reason) == ("warn", "DevicesGated")  # type: ignore[union-attr]
    counted = usable(world.report.status, world.node, world.policy)
    assert (counted.usable, counted.lost) == (7, {"gpu-lost": 1})
    fault = world.fault
    assert rule.name in fault.no_taint
    assert fault.steps[0].startswith(
        f"GPU 3 is kept from new pods by DeviceTaintRule {rule.name}. The node's"
    )
    assert fault.steps[3].startswith("Before the repair, at a time that you choose, `kubectl cordon node-1`")
    assert f"Next: {fault.next_step}" in world.node.condition.message  # type: ignore[union-attr]
    assert fault.next_step.startswith(
        "GPU 3 alone is kept from new pods, so choose the time of the repair. S"
    )
    assert "gpu-3 of pool node-1" in world.report.status.change.message  # type: ignore[union-attr]


def test_the_rule_stands_before_the_report_and_nothing_is_written_again() -> None:
    world = World().run(WELL)
    world.log.clear()
    world.run()
    order = (steps.PutDeviceRule, steps.PatchNode, steps.PatchReport)
    assert tuple(type(step) for step in world.log if isinstance(step, order)) == order
    world.log.clear()
    assert world.look().log == []


def test_it_heals_by_the_hysteresis_of_taints() -> None:
    world = World().run(WELL).run().run(WELL, times=2)
    assert world.ruled
    assert not world.run(WELL).rules
    assert world.posted[1] == names.Reason.DEVICES_RELEASED
    assert world.node.labels[names.LABEL_HEALTH] == "pass"


ELSEWHERE: dict[str, tuple[World, Result]] = {
    "a device plugin": (World(), BAD),
    "no API": (World(), BAD),
    "no devices": (World(()), BAD),
    "not asked for": (World(setting="None"), BAD),
    "a device that nobody can name": (World((*EIGHT[:3], device(3, uuid="", pci=""), *EIGHT[4:])), BAD),
    "a MIG device of an unknown GPU": (World((*EIGHT[:3], device(3, uuid="MIG-1", pci="", type="mig"))), BAD),
    "most GPUs": (World(), made.every_gpu(WELL, error=LOST)),
}
ELSEWHERE["a device plugin"][0].node = replace(ELSEWHERE["a device plugin"][0].node, gpu_capacity="8")
ELSEWHERE["no API"][0].served = False


@pytest.mark.parametrize("case", ELSEWHERE)
def test_where_that_cannot_be_told_the_node_is_tainted(case: str) -> None:
    world, bad = ELSEWHERE[case]
    world.run(WELL).run(bad)
    assert (world.ruled, world.taints, world.drains_at_once) == ({}, TAINTED, True)


def test_a_gpu_that_no_slice_shows_needs_no_rule_and_is_said() -> None:
    world = World((*EIGHT[:3], *EIGHT[4:])).run(WELL).run()
    assert (world.ruled, world.taints) == ({}, [])
    assert "is in no ResourceSlice" in world.report.status.change.message  # type: ignore[union-attr]
    assert "GPU 3 is in no ResourceSlice" in world.fault.steps[0]
    world.node = replace(world.node, devices=EIGHT)  # it is back, and no run has seen it yet
    assert world.look().ruled == {"gpu-3": ("gpu-lost", "NoSchedule")}


def test_it_is_found_by_its_pci_address_and_followed_by_its_uuid() -> None:
    mig = device(3, uuid="MIG-1", pci=made.pci(3).upper(), type="mig")
    assert World((*EIGHT[:3], mig, *EIGHT[4:])).run(WELL).run().ruled == {"gpu-3": ("gpu-lost", "NoSchedule")}
    world = World().run(WELL).run()
    renamed = replace(EIGHT[3], name="gpu-2"), replace(EIGHT[2], name="gpu-3")
    world.node = replace(world.node, devices=(*EIGHT[:2], *renamed, *EIGHT[4:]))
    assert world.look().ruled.keys() == {"gpu-2"}


def test_a_dry_run_gates_nothing_and_says_whom() -> None:
    world = World(setting="DryRun").run(WELL).run()
    assert (world.ruled, world.taints) == ({"gpu-3": ("gpu-lost", "None")}, TAINTED)
    assert world.drains_at_once


def test_the_budget_takes_the_worst_first_and_says_who_waits() -> None:
    world = World().run(WELL)
    world.slots = 1
    world.run(made.with_gpu(BAD, 5, error=LOST))
    states = sorted(each.state.value for each in world.report.status.desired.devices)
    assert (len(world.rules), states, world.taints) == (1, ["gated", "held-back"], [])
    assert world.drains_at_once, "GPU 5 goes to the next pod"
    world.slots = 2
    assert world.look().ruled.keys() == {"gpu-3", "gpu-5"}
    assert not world.drains_at_once


def test_a_refused_rule_taints_the_node_in_its_place() -> None:
    world = World().run(WELL)
    world.refused = (steps.PutDeviceRule,)
    assert world.run().taints == TAINTED
    world.refused = ()
    assert (world.look().ruled.keys(), world.taints) == ({"gpu-3"}, [])


def test_a_node_closed_by_a_taint_has_no_gpus_that_go_on() -> None:
    world = World()
    world.policy = world.policy.of({"taints": {"devices": "NoSchedule", "unvalidated": "Set"}})
    assert world.run().ruled
    assert world.drains_at_once


@pytest.mark.parametrize(("mode", "left"), [("Observe", 0), ("Paused", 1), ("Enforce", 1)])
def test_observe_removes_rules_and_paused_leaves_them(mode: str, left: int) -> None:
    world = World().run(WELL).run()
    world.policy = make_policy().of({"mode": mode, "taints": {"devices": "NoSchedule"}})
    assert world.drains_at_once is (mode == "Observe"), "also before the operator has looked"
    assert len(world.look().rules) == left


def test_a_node_that_leaves_or_goes_takes_its_rules_along() -> None:
    world = World().run(WELL).run()
    for gone in ({"policy": None}, {"node": None}):
        step = next_step(make_snapshot(**world.known() | {"node": make_node()} | gone))
        assert isinstance(step, steps.DeleteDeviceRule), gone


def test_only_rules_of_ours_are_read() -> None:
    (rule,) = World().run(WELL).run().rules.values()
    body = device_rule.body(rule, api_version="resource.k8s.io/v1")
    body["metadata"] |= {"uid": rule.uid, "managedFields": [{"manager": names.FIELD_MANAGER}]}
    assert device_rule.parse(body) == rule
    body["metadata"]["managedFields"] = [{"manager": "kubectl-edit"}]
    assert device_rule.parse(body) is None


def test_devices_have_a_budget_of_their_own() -> None:
    """Two of sixteen devices: kept while a write is in flight, then by the report."""
    cache, reports = Cache(), {}
    for name in ("node-1", "node-2"):
        world = World().run(WELL).run()
        cache.put_node(replace(make_node(name), devices=()))
        cache.put_slice(
            SliceView(name=name, resource_version="5", node=name, pool=name, generation=1, devices=EIGHT)
        )
        reports[name] = replace(make_report(make_node(name)), status=world.report.status)
    cache.policies["default"] = make_policy().of({"budget": {"gatedDevices": 2}})
    cache.policies_changed()
    budget = DeviceBudget(cache, NodeCounters(cache), clock=lambda: 0.0, cluster="100%")
    assert (budget.slots("default"), budget.allowance("node-1")) == (2, 2)
    assert budget.reserve("node-1", 1)
    assert (budget.used("default"), budget.allowance("node-2")) == (1, 1)
    cache.put_report(reports["node-1"])
    budget.confirm("node-1")
    assert (budget.used("default"), budget.reserve("node-2", 2), budget.reserve("node-2", 1)) == (
        1,
        False,
        True,
    )
    waiting = [replace(one, state=DeviceState.HELD_BACK) for one in reports["node-2"].status.desired.devices]
    status = reports["node-2"].status
    status = replace(status, desired=replace(status.desired, devices=waiting))
    cache.put_report(replace(reports["node-2"], status=status))
    gates = GateBudget(cache, clock=lambda: 0.0, now=lambda: NOW, cluster="100%", per_hour="100%")
    state = within_budget(cache, gates, budget, "default")
    assert state[:2] == ("False", names.BudgetReason.DEVICE_BUDGET_EXHAUSTED)
    assert "2 of 2 slots used, 1 more held back on 1 node." in state[2]
    assert state[2].endswith("see spec.budget.gatedDevices (2).")
    cache.policies["default"] = make_policy().of({"budget": {"gatedDevices": 0}})
    cache.policies_changed()
    assert budget.allowance("node-1") == 1, "a budget that shrank lifts nothing"
