"""What must be: machines and scenarios as data, and the row that follows for each pair of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from testbed import profiles
from testbed.hardware.faults_around import twelve_volts
from testbed.processes import output_of
from testbed.profiles.model import Healthy, Profile

SCENARIOS = Path(__file__).with_name("scenarios.yaml")
ROOT = Path(__file__).resolve().parents[3]
PROFILES, RULES = "tests/testbed/profiles/", "operator/src/nodegauge_judge/rules/"
UNREADABLE = {"call-hung", "driver-mismatch", "driver-not-loaded", "gpu-unreadable", "probe-deadline"}
"""Findings with which a node says within minutes that it cannot be read."""
KEPT, GONE, ONE_LESS = "kept", "gone", "one-less"
Parameters = dict[str, str | int]


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Read-only, and strict about its keys: a misspelt expectation must not be none."""


class Machine(Healthy, frozen=True, kw_only=True):
    """A profile by its name, as it must be while it is healthy."""

    profile: str


class Differs(Base, frozen=True, kw_only=True, rename="kebab"):
    """What is otherwise on machines that have a word."""

    has: str
    findings: dict[str, str] | None = None
    taint: str | None = None
    interconnect: str | None = None
    gbps: str | None = None
    psu: str | None = None
    throttled: str | None = None
    verdict: str | None = None
    why: str


class Scenario(Base, frozen=True, kw_only=True):
    """One fault, how it is watched, and what must follow where `otherwise` names no word of the machine."""

    name: str
    fault: dict[str, Parameters]
    load: int = 0
    runs: int = 2
    alone: bool = False
    where: tuple[str, ...] = ()
    findings: dict[str, str] = {}
    taint: str = ""
    interconnect: str = KEPT
    gbps: str = KEPT
    psu: str = KEPT
    throttled: str = KEPT
    verdict: str = ""
    otherwise: tuple[Differs, ...] = ()
    why: str

    @property
    def fault_name(self) -> str:
        return next(iter(self.fault))

    @property
    def parameters(self) -> Parameters:
        return self.fault[self.fault_name]


class Row(Base, frozen=True, kw_only=True):
    findings: dict[str, str]
    verdict: str
    taint: str
    interconnect: str
    gbps: str
    health: str
    throttled: str
    psu: str

    def line(self) -> str:
        result = ", ".join(f"{code} {severity}" for code, severity in sorted(self.findings.items()))
        labels = f"interconnect={self.interconnect or '-'} {self.gbps}".strip()
        rest = f"health={self.health or '-'} throttled={self.throttled or '-'} psu={self.psu or '-'}"
        return f"{self.verdict}: [{result}] taint={self.taint or '-'} {labels} {rest}"


def machines() -> list[Machine]:
    return [_machine(profiles.load(name)) for name in profiles.names()]


def _machine(profile: Profile) -> Machine:
    model, healthy = profile.model, profile.healthy
    twelve, chassis = twelve_volts(profile), profile.chassis
    own = {
        "supply": bool(twelve) or (chassis is not None and chassis.supplies is not None),
        "no-twelve": not twelve,
        "core-sensor": model.temperature is not None,
        "power-limit": model.power.default is not None,
        "lanes": model.pcie.max_width > 1,
        "slot-unseen": len(profile.gpus) == 1 and profile.gpus[0].address.split(":")[1] == "00",
    }
    has = (*healthy.has, *(word for word, there in own.items() if there))
    return Machine(profile=profile.name, **msgspec.structs.asdict(replace(healthy, has=has)))


def scenarios() -> list[Scenario]:
    return msgspec.convert(yaml.safe_load(SCENARIOS.read_text()), list[Scenario], strict=False)


def exists(machine: Machine, scenario: Scenario) -> bool:
    return set(scenario.where) <= set(machine.has)


def healthy(machine: Machine, *, load: int) -> Row:
    readable = machine.verdict != "unknown"
    return Row(
        findings=machine.findings,
        verdict=machine.verdict,
        taint="",
        interconnect=machine.interconnect,
        gbps=machine.gbps,
        health=machine.verdict if readable else "",
        throttled="none" if load and readable and "load-unreadable" not in machine.has else "",
        psu=machine.psu,
    )


def expected(machine: Machine, scenario: Scenario) -> Row:
    before = healthy(machine, load=scenario.load)
    other = next((differs for differs in scenario.otherwise if differs.has in machine.has), None)

    def value(name: str) -> Any:
        own = getattr(other, name) if other is not None else None
        return getattr(scenario, name) if own is None else own

    findings, interconnect = value("findings"), value("interconnect")
    verdict = value("verdict") or next((v for v in ("fail", "warn") if v in findings.values()), "pass")
    taint = value("taint") if verdict == "fail" else ""
    if machine.verdict == "unknown" and verdict != "fail":
        own = {} if scenario.alone else machine.findings
        return replace(before, findings=own | findings)  # nothing is decided there
    kept = {KEPT: before.interconnect, GONE: ""}.get(interconnect, interconnect)
    gbps = {KEPT: before.gbps, ONE_LESS: machine.one_less}.get(value("gbps"), value("gbps"))
    throttled = before.throttled if value("throttled") == KEPT else value("throttled")
    return Row(
        findings=machine.findings | findings,
        verdict=verdict,
        taint=taint,
        interconnect=kept,
        gbps=gbps if kept == "nvlink" else "",
        health=_health(verdict, taint, before=before, findings=findings),
        throttled=taint.removeprefix("throttled=") if taint.startswith("throttled=") else throttled,
        psu=before.psu if value("psu") == KEPT else value("psu"),
    )


def representative(machines: Sequence[Machine], scenarios: Sequence[Scenario]) -> set[tuple[str, str]]:
    """Pairs that try every rule on two machines that are alike to it, where there are two, in turn."""
    chosen: set[tuple[str, str]] = set()
    for number, scenario in enumerate(scenarios):
        alike: dict[tuple[bool, str, bool], list[Machine]] = {}
        for machine in machines:
            differs = next((one.has for one in scenario.otherwise if one.has in machine.has), "")
            key = (exists(machine, scenario), differs, machine.verdict == "unknown")
            alike.setdefault(key, []).append(machine)
        for group in alike.values():
            for offset in (number, number + (len(group) + 1) // 2):
                chosen.add((group[offset % len(group)].profile, scenario.name))
    return chosen


def _health(verdict: str, taint: str, *, before: Row, findings: Mapping[str, str]) -> str:
    if taint or verdict == "unknown":
        unreadable = UNREADABLE & findings.keys()
        return "fail" if taint else ("" if unreadable else before.health)
    return "warn" if verdict == "fail" else verdict


def changed_since(
    revision: str, machines: Sequence[Machine], scenarios: Sequence[Scenario]
) -> set[tuple[str, str]]:
    """Pairs that differ from the merge base with `revision`."""

    def git(*arguments: str) -> str:
        return output_of(["git", *arguments], cwd=ROOT)

    base = git("merge-base", "HEAD", revision).strip()
    files = git("diff", "--name-only", base).split()
    table = SCENARIOS.relative_to(ROOT).as_posix()
    before = yaml.safe_load(git("show", f"{base}:{table}")) if table in files else None
    known = [name for name in files if (ROOT / name).is_file()]
    texts = {name: (ROOT / name).read_text("utf-8", errors="replace") for name in known}  # a picture too
    return affected(texts, before, machines=machines, scenarios=scenarios)


def affected(
    changed: dict[str, str], before: object, *, machines: Sequence[Machine], scenarios: Sequence[Scenario]
) -> set[tuple[str, str]]:
    """Pairs whose profile, table entry (`before`: as it was) or rules file is among the `changed` texts."""
    known = scenarios if before is None else msgspec.convert(before, list[Scenario], strict=False)

    def codes(scenario: Scenario) -> set[str]:
        return set(scenario.findings).union(*(one.findings or {} for one in scenario.otherwise))

    rules = "".join(text for name, text in changed.items() if name.startswith(RULES))
    return {
        (machine.profile, scenario.name)
        for machine in machines
        for scenario in scenarios
        if f"{PROFILES}{machine.profile}.yaml" in changed
        or scenario not in known
        or any(f'"{code}"' in rules for code in codes(scenario))
    }
