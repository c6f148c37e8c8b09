"""Trees of BMCs with every fault that they can have, read as `nodegauge bmc` reads them; `machines.yaml` says
what is honest.  A cell is `right`; `unhelpful`: the finding is missing, or nothing is decided; `wrong`: a
fault passes, or a healthy machine is accused."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from msgspec.structs import replace

from corpus.bmc import faults
from corpus.bmc.faults import Changed, Part, Resources, Tree
from nodegauge_bmc.connection import BmcError, Unreadable
from nodegauge_bmc.redfish import read_tree
from nodegauge_bmc.tree import Tree as Reader
from nodegauge_contract.chassis import ChassisReading
from nodegauge_judge import Severity, Verdict
from nodegauge_judge.chassis.judge import ChassisJudgement, judge_chassis

HERE = Path(__file__).parent
FOLDERS = (HERE.parents[1] / "fixtures" / "redfish", HERE)
RIGHT, UNHELPFUL, WRONG = "right", "unhelpful", "wrong"
MACHINES: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "machines.yaml").read_text(encoding="utf-8"))
HOT = 60.0
"""°C: no class of machines may breathe such air (ASHRAE TC 9.9)."""


class Outcome(NamedTuple):
    reading: ChassisReading | None
    judged: ChassisJudgement | None
    error: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.judged.verdict if self.judged else Verdict.UNKNOWN

    @property
    def codes(self) -> set[str]:
        findings = self.judged.findings if self.judged else []
        return {finding.code for finding in findings if finding.severity is not Severity.INFO}

    @property
    def counts(self) -> tuple[int, int, int | None]:
        assert self.reading is not None
        assert self.judged is not None
        return len(self.reading.fans), self.judged.installed, self.judged.load_watts


class Cell(NamedTuple):
    machine: str
    mutation: str
    part: str
    answer: str
    output: str


class Served:
    def __init__(self, recorded: Resources, changed: Changed) -> None:
        self._recorded, self._changed = recorded, changed

    async def get(self, path: str) -> Any:
        path = path.rstrip("/")
        body = self._changed[path] if path in self._changed else self._recorded.get(path)
        if body is None:
            raise Unreadable("HTTP status 403" if path in self._changed else "HTTP status 404")
        return body


@cache
def recorded(machine: str) -> Resources:
    file = next(path for folder in FOLDERS if (path := folder / f"{machine}.json").exists())
    resources = json.loads(file.read_text(encoding="utf-8"))["resources"]
    return {path.rstrip("/"): body for path, body in resources.items()}


async def outcome(tree: Tree) -> Outcome:
    try:
        reader = Reader(Served(tree.recorded, tree.changed))  # type: ignore[arg-type]
        reading = await read_tree(reader)
    except BmcError as error:
        return Outcome(None, None, str(error))
    reading = replace(reading, unread=reader.unread)
    return Outcome(reading, judge_chassis(reading))


# What must be true of the answer: `wrong` and `unhelpful` are decided by the mutation.
Judge = Callable[[Outcome, Outcome], str]


def refused(*codes: str) -> Judge:
    """A fault: it must not pass; a useful answer has one of these findings."""

    def answer(healthy: Outcome, got: Outcome) -> str:
        if got.verdict is Verdict.PASS:
            return WRONG
        return RIGHT if not codes or set(codes) & got.codes else UNHELPFUL

    return answer


def emptied(healthy: Outcome, got: Outcome) -> str:
    """An empty bay is no fault while the others carry the load; it is no supply that works, either."""
    installed = healthy.judged.installed if healthy.judged else 0
    if got.judged is None or got.judged.installed >= installed or got.verdict is Verdict.FAIL:
        return WRONG
    return RIGHT


def same(healthy: Outcome, got: Outcome) -> str:
    """The machine is as healthy as before, and is counted as before."""
    if got.judged is None or got.verdict not in (healthy.verdict, Verdict.UNKNOWN):
        return WRONG
    if got.counts != healthy.counts:
        return WRONG
    return RIGHT if got.verdict is healthy.verdict else UNHELPFUL


def calm(healthy: Outcome, got: Outcome) -> str:
    """No finding that the healthy machine has not."""
    return WRONG if got.judged is None or got.codes - healthy.codes else RIGHT


Mutation = tuple[str, str, Callable[[Tree], None], Judge]
"""Its name, the part, what it does, and what is right."""


def mutations(machine: str) -> Iterator[Mutation]:
    tree = Tree(recorded(machine))
    dummies = MACHINES[machine].get("dummies") or []
    supplies = [supply for supply in tree.supplies if supply.name not in dummies]
    failed = {"State": "Enabled", "Health": "Critical"}
    yield from each("fan at 0", tree.fans, faults.stand_still, refused("fan-failed"))
    yield from each("fan Critical", tree.fans, faults.status(**failed), refused("fan-failed"))
    yield from every("fans", tree.fans, {"at 0": faults.stand_still, "absent": faults.leave})
    for name, apply, judge in (
        ("supply Critical", faults.status(**failed), refused("supply-failed")),
        ("supply offline", faults.status(State="UnavailableOffline", Health="OK"), refused("supply-failed")),
        ("supply Warning", faults.status(State="Enabled", Health="Warning"), refused("supply-warning")),
        ("supply without input", faults.lose_input, refused("supply-no-input")),
        ("supply silent", faults.be_silent, refused()),
        ("supply absent", faults.leave, emptied),
    ):
        yield from each(name, supplies, apply, judge)
    silent = {"silent": faults.be_silent, "absent": faults.leave, "Critical": faults.status(**failed)}
    yield from every("supplies", tree.supplies, silent)
    for names in MACHINES[machine].get("inlets") or []:
        name, locations = str(names), tree.named(names if isinstance(names, list) else [names])
        assert locations, f"{machine} has no sensor {name}"
        yield "inlet hot", name, partial(warm, locations=locations), refused("inlet-hot")
        if alarmed := [location for location in locations if "Status" in tree.at(location)]:
            yield "inlet Critical", name, partial(alarm, locations=alarmed), refused("inlet-hot")
    rails: dict[str, list[tuple[faults.Location, float]]] = {}
    for location, low in tree.rails:
        rails.setdefault(tree.name(location), []).append((location, low))
    for name, locations in rails.items():
        yield "rail 10 % low", name, partial(sag, locations=locations, share=0.9), refused("chassis-rail")
        yield "rail at its bound", name, partial(sag, locations=locations, share=1.001), calm
    if tree.rails:
        yield "rails without bounds", "", unbound, calm
    yield from whole(tree)


def whole(tree: Tree) -> Iterator[Mutation]:
    bodies = {path: body for path, body in tree.recorded.items() if isinstance(body, dict)}
    switched = [
        path for path, body in bodies.items() if body.get("PowerState") == "On" and path.count("/") == 4
    ]
    if switched:
        yield "machine off", "", partial(write, paths=switched, PowerState="Off"), refused()
    lists = [path for path, body in bodies.items() if body.get("Members")]
    yield "members doubled", "", partial(double, paths=lists), same
    yield "nextLink to itself", "", partial(turn, paths=lists), same
    yield "chassis shown twice", "", show_twice, same
    if tree.supplies:
        yield "power refused", "", partial(refuse, names=("Power", "PowerSubsystem")), refused()
    if tree.fans:
        yield "cooling refused", "", partial(refuse, names=("Thermal", "ThermalSubsystem")), refused()
    for path, body in bodies.items():
        if "DetectorState" in body and body.get("Status", {}).get("State") == "Enabled":
            yield (
                "leak",
                path.rpartition("/")[2],
                partial(write, paths=[path], DetectorState="Critical"),
                refused("leak"),
            )


def each(
    name: str, parts: list[Part], apply: Callable[[Tree, Part], None], judge: Judge
) -> Iterator[Mutation]:
    for part in parts:
        yield name, part.name, partial(_all, apply=apply, parts=[part]), judge


def every(name: str, parts: list[Part], ways: dict[str, Callable[[Tree, Part], None]]) -> Iterator[Mutation]:
    for word, apply in ways.items() if parts else ():
        yield f"all {name} {word}", "", partial(_all, apply=apply, parts=parts), refused()


def _all(tree: Tree, *, apply: Callable[[Tree, Part], None], parts: list[Part]) -> None:
    for part in parts:
        apply(tree, part)


def warm(tree: Tree, *, locations: list[faults.Location]) -> None:
    for location in locations:
        faults.put(tree.edit(location), frozenset({"Reading", "ReadingCelsius"}), HOT)


def alarm(tree: Tree, *, locations: list[faults.Location]) -> None:
    for location in locations:
        tree.edit(location)["Status"] = {"State": "Enabled", "Health": "Critical"}


def sag(tree: Tree, *, locations: list[tuple[faults.Location, float]], share: float) -> None:
    for location, low in locations:
        faults.put(tree.edit(location), frozenset({"Reading", "ReadingVolts"}), round(share * low, 4))


def unbound(tree: Tree) -> None:
    for location, _ in tree.rails:
        body = tree.edit(location)
        for key in [key for key in body if "Threshold" in key]:
            del body[key]


def write(tree: Tree, *, paths: list[str], **members: Any) -> None:
    for path in paths:
        tree.edit(path).update(members)


def double(tree: Tree, *, paths: list[str]) -> None:
    for path in paths:
        tree.edit(path)["Members"] *= 2


def turn(tree: Tree, *, paths: list[str]) -> None:
    for path in paths:
        tree.edit(path)["Members@odata.nextLink"] = path


def show_twice(tree: Tree) -> None:
    """Another chassis with links to the same fans and supplies: six of them had 16 fans, counted as 96."""
    for path in tree.chassis:
        tree.changed[f"{path}-too"] = dict(tree.at(path)) | {"@odata.id": f"{path}-too"}
    listed = tree.edit(f"{faults.ROOT}/Chassis")["Members"]
    listed += [{"@odata.id": f"{path}-too"} for path in tree.chassis]


def refuse(tree: Tree, *, names: tuple[str, ...]) -> None:
    """A role that may not read it."""
    for path in tree.recorded:
        if any(f"/{word}" in path and "/Chassis/" in path for word in names):
            tree.changed[path] = None


async def _judged(machine: str) -> list[Cell]:
    tree = Tree(recorded(machine))
    healthy = await outcome(tree)
    allowed = str(MACHINES[machine]["healthy"])
    expected = healthy.verdict.value == allowed
    cells = [Cell(machine, "healthy", "", RIGHT if expected else WRONG, _output(healthy))]
    for name, part, apply, judge in mutations(machine):
        changed = Tree(tree.recorded)
        apply(changed)
        got = await outcome(changed)
        cells.append(Cell(machine, name, part, judge(healthy, got), _output(got)))
    return cells


def _output(got: Outcome) -> str:
    if got.judged is None:
        return f"error: {got.error}"
    return f"{got.verdict.value} {sorted(got.codes)} {got.judged.summary}"


def judged(machine: str) -> list[Cell]:
    return asyncio.run(_judged(machine))


def show(machines: list[str]) -> int:
    """Print the table: how many parts of a machine are wrong (W2) or unhelpful (u1) under a mutation.  The
    number of wrong answers."""
    cells = [cell for machine in machines for cell in judged(machine)]
    names = list(dict.fromkeys(cell.mutation for cell in cells))
    width = max(map(len, names))
    print(" " * width + "".join(f"{number:>4}" for number in range(1, len(machines) + 1)))
    for name in sorted(names, key=names.index):
        row = [_cell([cell.answer for cell in cells if cell[:2] == (machine, name)]) for machine in machines]
        print(f"{name:{width}}" + "".join(f"{text:>4}" for text in row))
    for number, machine in enumerate(machines, 1):
        print(f"{number:>3} {machine}: {MACHINES[machine]['machine']}")
    for cell in cells:
        if cell.answer == WRONG:
            print(f"wrong: {cell.machine}, {cell.mutation} {cell.part}: {cell.output}")
    answers = [cell.answer for cell in cells]
    counts = ", ".join(f"{answers.count(answer)} {answer}" for answer in (RIGHT, UNHELPFUL, WRONG))
    print(f"{len(machines)} machines, {len(cells)} mutations of a part: {counts}")
    return answers.count(WRONG)


def _cell(answers: list[str]) -> str:
    wrong, unhelpful = answers.count(WRONG), answers.count(UNHELPFUL)
    return f"W{wrong}" if wrong else f"u{unhelpful}" if unhelpful else "ok" if answers else ""
