"""Who reads what strangers wrote: each target makes an input of choices, and raises if a promise breaks."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from msgspec import to_builtins
from msgspec.structs import replace
from rich.console import Console

import support.load_results as load
import support.nccl_results as nccl
import support.results as made
from fuzz import checks
from fuzz.mutation import Choices, Documents, as_text
from nodegauge_cli.documents import parts_of
from nodegauge_cli.judge import show
from nodegauge_cli.judge_text import show_refused, show_section
from nodegauge_cli.judging import Criteria, NoHistory, judged
from nodegauge_cli.reported import Reported, Unusable
from nodegauge_contract import ArmName, ContractError, Result, decode, encode
from nodegauge_contract import text as lines_of
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, PolicyInvalid, parse
from nodegauge_operator.api.report import Outcome, parse_report
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import actions
from nodegauge_operator.core.model import chassis_view
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.reading_view import reading_view
from support import objects
from support.messages import hostile
from support.objects import NOW, ANode, APod, make_node, make_pod, make_policy, make_report, make_snapshot

TESTS = Path(__file__).resolve().parents[1]
NODE = make_node().offering(8)
MOST_STEPS = 24
HUNG = nccl.swapped(nccl.h100(), ArmName.DEFAULT, outcome="hung", phase="init", cells=[])
RESULTS: dict[str, list[Result]] = {
    names.PROBE_HEALTH: [made.titan(), made.phb(), made.h100(2), made.a100_bridged_pairs()],
    names.PROBE_NCCL: [nccl.titan(), nccl.h100(), nccl.phb(), HUNG],
    names.PROBE_LOAD: [load.loaded(load.gpu(0), load.gpu(1))],
}
ALL_RESULTS = [result for results in RESULTS.values() for result in results]
PLAIN = Documents(*(json.loads(encode(result)) for result in ALL_RESULTS))
RECORDS = Documents(*map(to_builtins, ALL_RESULTS))
"""The same without columns, where the places of single values are."""
SMALLEST: dict[str, Any] = json.loads(encode(Result(probe=names.PROBE_HEALTH)))
MEMBERS = ("index", "links", "fans", "serial", "rows", "each", "of", "at", "unavailable", "")
VALUES: list[Any] = [None, True, 0, 1, 1.0, -1, 256, 2**20, "", "gone", [], {}, {"unavailable": "not read"}]


class Watched:
    """The planner in a loop; `stored`: the report is such as the API server holds, and must take what
    follows."""

    def __init__(self, *, stored: bool = True, **known: Any) -> None:
        self.stored = stored
        start: dict[str, Any] = {"node": NODE, "granted": frozenset({"health", "nccl"}), "gate_slot": True}
        self.known = start | known
        self.made: list[actions.Step] = []

    def go(self) -> None:
        for _ in range(MOST_STEPS):
            step = next_step(make_snapshot(**self.known))
            if step is None:
                return
            checks.step(step, stored=self.stored)
            self.made.append(step)
            match step:
                case actions.PatchReport(report, status):
                    checks.require(report is self.known["report"], "another report is patched")
                    self.known |= {"report": replace(report, status=status), "judged": None}
                case actions.PatchNode(node, labels, taints, judged):
                    assert isinstance(node, ANode)
                    self.known |= {"node": node.patched(labels, taints), "judged": judged}
                case actions.SetCondition(node, condition):
                    assert isinstance(node, ANode)
                    self.known["node"] = node.saying(condition)
                case actions.PostEvent(_, change):
                    self.known["posted"] = (change.run, change.reason)
                case actions.RefreshReport() | actions.RefreshReading():
                    fresh = self.known.get("fresh", frozenset({actions.RefreshReading}))
                    checks.require(type(step) not in fresh, "read twice for one question", step)
                    self.known["fresh"] = fresh | {type(step)}
                case _:
                    return
        raise checks.Broken(f"no end of writes: {[type(step).__name__ for step in self.made]}")


def document(choices: Choices) -> None:
    match choices.ConsumeIntInRange(0, 5):
        case 0:
            text = choices.ConsumeUnicodeNoSurrogates(4096)
        case 1 | 2:
            text = as_text(PLAIN.changed(choices))
        case 3:
            text = as_text(RECORDS.changed(choices))
        case 4:
            text = as_text(SMALLEST | {"gpus": _table(choices, deep=3)})
        case _:
            result = ALL_RESULTS[choices.ConsumeIntInRange(0, len(ALL_RESULTS) - 1)]
            text = _garbled(lines_of(result), choices)
    _decoded(text)


def _table(choices: Choices, *, deep: int) -> Any:
    """A table, what may stand in one, or what only looks like it."""
    length = choices.ConsumeIntInRange(0, 4)
    if deep == 0 or length == 0:
        return VALUES[choices.ConsumeIntInRange(0, len(VALUES) - 1)]

    def inner() -> Any:
        return _table(choices, deep=deep - 1)

    match choices.ConsumeIntInRange(0, 5):
        case 0 | 1:
            names = [MEMBERS[choices.ConsumeIntInRange(0, len(MEMBERS) - 1)] for _ in range(length)]
            return {"rows": choices.ConsumeIntInRange(-1, 4)} | {name: inner() for name in names}
        case 2:
            return {"of": inner(), "at": [choices.ConsumeIntInRange(-1, 4) for _ in range(length)]}
        case 3:
            return {"each": inner()}
        case 4:
            return {MEMBERS[choices.ConsumeIntInRange(0, len(MEMBERS) - 1)]: inner()}
        case _:
            return [inner() for _ in range(length)]


def _garbled(text: str, choices: Choices) -> str:
    characters = list(text)
    for _ in range(choices.ConsumeIntInRange(1, 4)):
        at = choices.ConsumeIntInRange(0, len(characters) - 1)
        characters[at] = chr(choices.ConsumeIntInRange(32, 126))
    return "".join(characters)


def _decoded(text: str) -> Result | None:
    """The document, which stays what it is when it is written and read; None with a reason for any other."""
    try:
        decoded = decode(text)
    except ContractError as error:
        checks.require(0 < len(str(error)) <= 500, "length of the contract's error", str(error))
        return None
    for form in (encode(decoded).decode(), lines_of(decoded)):
        checks.require(decode(form) == decoded, "a document that changes", decoded)
    return decoded


def _mine(pod: APod) -> Documents:
    own = [objects.document(result, pod) for result in RESULTS[pod.probe]]
    return Documents(*(json.loads(encode(result)) for result in own), *map(to_builtins, own))


MINE = {(probe, n): _mine(make_pod(NODE, probe=probe, number=n)) for probe in RESULTS for n in (1, 2)}
OWNERS = [{"kind": "Node", "name": NODE.name, "uid": NODE.uid}]
METADATA = {"name": NODE.name, "resourceVersion": "10", "ownerReferences": OWNERS}


def readings(choices: Choices) -> None:
    """As a document, in a part that says something else, or as a termination message; after a good run or
    none."""
    probes = sorted(RESULTS)
    probe = probes[choices.ConsumeIntInRange(0, len(probes) - 1)]
    report = parse_report(LIVED) if choices.ConsumeIntInRange(0, 1) else make_report(NODE)
    pod = make_pod(NODE, probe=probe, number=report.status.probe[probe].next_number).running()
    left = _left(choices, pod)
    decoded = _decoded(left)
    known: dict[str, Any] = {"report": report, "pods": (pod.leaving(left),)}
    match choices.ConsumeIntInRange(0, 7):
        case 0:
            part = {"sequence": 1, "at": stamp(NOW), "reason": "run", "pod": pod.name, "podUID": pod.uid}
            part |= {"nodeUID": NODE.uid, "bootID": NODE.boot_id, "probeVersion": "1", "reading": left}
            body = Documents({probe: part}).changed(choices)
            body = body if isinstance(body, dict) else {}
            known["reading"] = reading_view(body | {"metadata": METADATA | {"uid": "reading"}})
        case 1:
            known["pods"] = (pod.finished_with(left, code=choices.ConsumeIntInRange(0, 2)),)
            decoded = None
    watched = Watched(**known)
    watched.go()
    after = watched.known["report"].status
    run = after.probe[probe].last_run
    checks.require(run is not None, "a run that ended is not in the report")
    if decoded is None:
        checks.require(run.outcome is not Outcome.READ, "a verdict from a text that is no document", left)
    if run.outcome is not Outcome.READ:  # promise 1, however much of it looks like NVLink
        before, now = report.status, after.desired
        checks.require(now.labels == before.desired.labels, "labels from what was not read", now)
        checks.require(now.taints == before.desired.taints, "a taint from what was not read", now)
        checks.require(now.condition in (before.desired.condition, "Unknown"), "a condition", now)
        checks.require(after.interconnect == before.interconnect, "a class", after.interconnect)
    for text in checks.texts(to_builtins(after)):
        checks.shown(text, what="the report", lines=True)


def _left(choices: Choices, pod: APod) -> str:
    results = RESULTS[pod.probe]
    how = choices.ConsumeIntInRange(0, 9)
    if how == 0:
        kinds = sorted(hostile(pod).items())
        return kinds[choices.ConsumeIntInRange(0, len(kinds) - 1)][1]
    if how == 1:
        return choices.ConsumeUnicodeNoSurrogates(4096)
    if how <= 3:
        result = results[choices.ConsumeIntInRange(0, len(results) - 1)]
        return _garbled(lines_of(objects.document(result, pod)), choices)
    text = as_text(MINE[pod.probe, pod.number].changed(choices))
    tries = 0 if how <= 5 else 8  # most changes make it unreadable
    while tries and _decoded(text) is None:
        text, tries = as_text(MINE[pod.probe, pod.number].changed(choices)), tries - 1
    return text


EXAMPLE = TESTS.parent / "crds" / "examples" / "full.yaml"
SPEC: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["spec"]
"""Every field of a policy, in mode Watch."""
BY_PODS = SPEC | {"probes": SPEC["probes"] | {"health": {"mode": "Periodic", "interval": "15m"}}}
POLICIES = Documents(SPEC, BY_PODS)


def policies(choices: Choices) -> None:
    policy = _policy(POLICIES.changed(choices))
    if policy is None:
        return
    Watched(report=None, policy=policy).go()
    Watched(report=make_report(NODE), policy=policy).go()
    probe = sorted(RESULTS)[choices.ConsumeIntInRange(0, len(RESULTS) - 1)]
    pod = make_pod(NODE, probe=probe).running()
    for result in RESULTS[probe]:
        Watched(report=make_report(NODE), policy=policy, pods=(pod.with_result(result),)).go()


def _policy(spec: Any) -> Policy | None:
    try:
        return parse({"metadata": {"name": "default", "uid": "uid", "generation": 1}, "spec": spec})
    except PolicyInvalid as error:
        checks.require(bool(str(error)), "no reason")
        return None


FULL: dict[str, Any] = {
    "metadata": METADATA | {"uid": make_report(NODE).uid},
    "spec": {"requestedAt": "2026-11-01T00:00:00Z"},
    "status": yaml.safe_load((TESTS / "cluster" / "full-status.yaml").read_text(encoding="utf-8")),
}


def _lived() -> dict[str, Any]:
    watched = Watched(
        report=make_report(NODE), pods=(make_pod(NODE).running().with_result(made.h100()),), now=NOW
    )
    watched.go()
    return FULL | {"status": to_builtins(watched.known["report"].status)}


LIVED = _lived()
STATUSES = Documents(FULL["status"], LIVED["status"])


CRITERIA = Criteria.from_spec({})


def screen_and_console() -> tuple[io.StringIO, Console]:
    screen = io.StringIO()
    return screen, Console(file=screen, width=120, highlight=False, markup=False, emoji=False)


def reports(choices: Choices) -> None:
    """Whatever a report holds: the operator comes to rest, and writes only what the API takes; a person can
    judge it."""
    body = {**FULL, "status": STATUSES.changed(choices)}
    pods: tuple[APod, ...] = ()
    report = parse_report(body)
    screen, console = screen_and_console()
    show(reported := Reported(report=report), judged(reported, CRITERIA), console=console)
    checks.shown(screen.getvalue(), what="the terminal", lines=True)
    if choices.ConsumeIntInRange(0, 1):
        probe = sorted(RESULTS)[choices.ConsumeIntInRange(0, len(RESULTS) - 1)]
        number = report.status.probe[probe].next_number
        pods = (make_pod(NODE, probe=probe, number=number).running().with_result(RESULTS[probe][0]),)
    node = NODE.carrying(report.status.desired) if choices.ConsumeIntInRange(0, 1) else NODE
    now = NOW + choices.ConsumeIntInRange(0, 1_000_000)
    Watched(stored=checks.stored(body["status"]), report=report, node=node, pods=pods, now=now).go()


CHASSIS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("chassis.yaml").read_text(encoding="utf-8"))
CHASSIS["metadata"]["name"] = NODE.name
CHASSES = Documents(CHASSIS)
READING_BMCS = make_policy().of({"probes": {"bmc": {"enabled": True}}})


def chassis(choices: Choices) -> None:
    view = chassis_view(CHASSES.changed(choices) | {"metadata": CHASSIS["metadata"]})
    watched = Watched(report=parse_report(LIVED), policy=READING_BMCS, chassis=view, now=NOW + 60)
    watched.go()


PASTES = Documents(
    *(
        path.read_text(encoding="utf-8").splitlines()
        for folder, pattern in (("fixtures", "*.txt"), ("fixtures", "*.log"), ("fixtures/pasted", "*"))
        for path in sorted((TESTS / folder).glob(pattern))
        if path.is_file() and path.stat().st_size < 20_000
    )
)


def texts(choices: Choices) -> None:
    if choices.ConsumeIntInRange(0, 1):
        text = "\n".join(line for line in PASTES.changed(choices) if isinstance(line, str))
    else:
        text = as_text(PLAIN.changed(choices))
    screen, console = screen_and_console()
    try:
        for title, read in parts_of(text):
            show_section(title, console=console)
            if isinstance(read, Unusable):
                show_refused(str(read), console=console)
            else:
                show(read, judged(read, CRITERIA), console=console)
    except (Unusable, NoHistory) as error:
        checks.require(bool(str(error)), "no reason")
    checks.shown(screen.getvalue(), what="the terminal", lines=True)


TARGETS: dict[str, Callable[[Choices], None]] = {
    target.__name__: target for target in (document, readings, policies, reports, chassis, texts)
}
