"""Name what an incomplete change still lacks, and what to add to which file; `--write` makes the generated
files.  A test names a thing if its name, or a spelling, is a word in the code of a `test_*.py`.  That is
cheap; whether the test is any good, it cannot say."""

import inspect
import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from checkout import (
    Thing,
    at,
    code,
    fields,
    file_of,
    files,
    holds,
    is_tested,
    lacking,
    modules_of,
    row,
    tested,
    text,
    token,
    tokens,
)
from msgspec import inspect as types
from probes_and_packages import chart, collection, contract, driver
from prometheus_client.metrics import MetricWrapperBase

import nodegauge_judge
from nodegauge_contract.reading import PART_BYTES, Part
from nodegauge_judge import CATALOGUE, Cause, Rule, Thresholds
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.reference import findings_page
from nodegauge_operator import core, metrics, names
from nodegauge_operator.api.chassis import ChassisStatus
from nodegauge_operator.api.node_history import HistoryStatus
from nodegauge_operator.api.policy import Hysteresis, PolicySpec
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.bmc_reader import metrics as reader_metrics
from nodegauge_operator.core import probes
from nodegauge_operator.core.gpu_eligibility import Why
from nodegauge_operator.core.label import Label
from nodegauge_operator.core.probes.kind import Kind
from nodegauge_operator.core.probes.registry import EVERY, KINDS
from nodegauge_operator.core.probes.registry import labels as every_label
from nodegauge_operator.names import (
    BreakerReason,
    BudgetReason,
    PaceReason,
    PolicyReason,
    Reason,
    WatchersReason,
)
from nodegauge_probes import once, settings
from support.crds import differences, nodes_of, part, unbounded

OPERATOR, JUDGE = "operator/src/nodegauge_operator", "operator/src/nodegauge_judge"
PROBES = "probes/src/nodegauge_probes"
RUNBOOK, ACT, NO_RUN = "docs/runbook.md", "Must I act now?", "No NCCL run happens"
MODELS, OWN_ROWS = f"{JUDGE}/gpu_models.yaml", "tests/unit/gpu-names.yaml"
FLOORS = "tests/unit/test_judge_nccl_floors.py"
CRD, FULL = "crds/gpuvalidationpolicies.yaml", "crds/examples/full.yaml"

SCHEMAS: dict[tuple[str, str], Any] = {
    (names.POLICY_PLURAL, "spec"): PolicySpec,
    (names.POLICY_PLURAL, "status"): None,
    (names.REPORT_PLURAL, "spec"): None,
    (names.REPORT_PLURAL, "status"): ReportStatus,
    **{(names.READING_PLURAL, name): Part for name in PART_BYTES},
    (names.CHASSIS_PLURAL, "status"): ChassisStatus,
    (names.HISTORY_PLURAL, "status"): HistoryStatus,
}
WELL = {WatchersReason.CONTAINERS_RUNNING, WatchersReason.CONTAINERS_STARTING}
EXPLAINED = ({*BudgetReason} - {BudgetReason.WITHIN_BUDGET}) | ({*WatchersReason} - WELL)
WITHOUT_SETTINGS = {names.PROBE_PULL}
"""It runs for the NCCL probe, by that one's settings."""
WITHOUT_PROGRAM = {names.PROBE_BMC, names.PROBE_FEED}
"""The BMC reader is a process of the operator's, and the watch container looks for feed windows."""


@cache
def runbook() -> Mapping[tuple[str, str], str]:
    """Sections of the runbook by second-level and third-level heading (empty: before the first of these)."""
    sections: dict[tuple[str, str], str] = {}
    for chapter in re.split(r"^## ", text(RUNBOOK), flags=re.MULTILINE)[1:]:
        title, _, rest = chapter.partition("\n")
        first, *parts = re.split(r"^### ", rest, flags=re.MULTILINE)
        sections |= {(title, ""): first} | {(title, p.partition("\n")[0]): p for p in parts}
    return sections


# -- what the judge knows


def rules() -> Iterator[Thing]:
    """Every rule that a module of the judge holds, in a list or not."""
    rules: dict[str, Rule[Any]] = dict(CATALOGUE)
    for module in modules_of(nodegauge_judge):
        for value in vars(module).values():
            for rule in value if isinstance(value, tuple) else (value,):
                if isinstance(rule, Rule):
                    rules.setdefault(rule.code, rule)
    where = {code: f for f in files(JUDGE, ".py") for code in re.findall(r'code="([\w-]+)"', text(f))}
    return (Thing(where.get(code, JUDGE), code, more=rule) for code, rule in rules.items())


def judge() -> Iterator[str]:
    yield from lacking(
        rules(),
        (
            lambda t: t.more is CATALOGUE.get(t.name),
            "no list has its rule; add it to RULES in {t.file}, and a new module to HEALTH_RULES in "
            f"{JUDGE}/rules/__init__.py",
        ),
        tested("tests/unit/test_judge_{stem}.py (bad, good, unreadable)"),
    )
    rows = findings_page().splitlines()
    meaning = {line.split("`")[1]: line for line in rows if re.match(r"\| `\w+` \| [\w.+-]+ \|", line)}
    yield from lacking(
        (
            Thing(f"{JUDGE}/thresholds.py", f.name, (f.encode_name,), f"Default {f.default:g}.")
            for f in msgspec.structs.fields(Thresholds)
        ),
        (
            lambda t: (
                t.more in meaning[t.spellings[0]]
                and re.search(r"Chosen by this project[.:]|Source: ", meaning[t.spellings[0]])
            ),
            'not explained; add """UNIT, meaning.  {t.more}  Source: ...""" below it (or: Chosen by this '
            "project: REASON)",
        ),
        (token(JUDGE, form=".{t.name}"), "no rule compares with it; add the comparison to its rule's check"),
    )
    yield from lacking(
        (Thing(MODELS, row.model) for row in known_models().rows),
        (
            holds(OWN_ROWS, "\n{t.name}: "),
            "no test knows this model; add {t.name}: NVML NAME to " + OWN_ROWS,
        ),
    )
    yield from lacking(
        dict.fromkeys(Thing(MODELS, e.gpu, more=e.source) for e in Expectations.default()),
        (lambda t: t.more, "no source; add source: AUTHOR/REPOSITORY COMMIT, FILE"),
        (
            holds(FLOORS, '"{t.name}": ('),
            'no test knows this GPU; add "{t.name}": (NVML NAME, JOINED BY, NVLINK, CAPABILITY, PCIE) to '
            f"MACHINES in {FLOORS}",
        ),
    )


def causes() -> Iterator[str]:
    """Causes of taints: what the rules have, people read and policies name."""
    schema = at(part(names.POLICY_PLURAL, "spec"), "properties.taints.properties.causes")
    (rule,) = schema["x-kubernetes-validations"]
    crd = [{*re.findall(r"[a-z0-9-]+", t)} for t in (schema["description"], *rule.values())]
    of_rules = {rule.gate for rule in CATALOGUE.values() if rule.gate}
    gates = {(f"{names.PREFIX}{gate.kind.value}", gate.cause.value) for gate in of_rules}
    yield from lacking(
        (Thing(f"{JUDGE}/model.py", f"cause {cause}", more=(key, cause)) for key, cause in sorted(gates)),
        (
            lambda t: "- Clears: " in runbook().get(t.more, ""),
            "the runbook lacks it; add `### {t.more[1]}` with `- Clears: ...` below `## {t.more[0]}` "
            f"to {RUNBOOK}",
        ),
        (
            lambda t: f"`{t.more[1]}`" in runbook()[ACT, ""],
            f'nobody knows whether to act now; add `{{t.more[1]}}` to the table "{ACT}" in {RUNBOOK}',
        ),
        (
            row("README.md", "| `{t.more[0]}` |", "`{t.more[1]}`"),
            "README lacks it; add `{t.more[1]}` to the row of `{t.more[0]}` in README.md",
        ),
        (
            lambda t: t.more[1] in names.NODE_TAINTS[t.more[0]][0].split(" | "),
            f"the taint lacks it; add {{t.more[1]}} to NODE_TAINTS in {OPERATOR}/names.py",
        ),
        (
            lambda t: all(t.more[1] in allowed for allowed in crd),
            "a policy cannot name it; add {t.more[1]} to rule, message, messageExpression and description of "
            f"spec.taints.causes in {CRD}",
        ),
    )
    for key, cause in sorted(runbook().keys() - gates):
        if key in names.TAINTS_OF_FAULTS and cause:
            yield f"{RUNBOOK}: {cause}: no rule sets {key} for this cause; remove the section"
    known = {cause for _, cause in gates}
    for cause in sorted({*Cause} - known):
        yield f"{JUDGE}/model.py: cause {cause}: no rule has it; add its rule, or remove it"
    for cause in sorted({*re.findall(r"'([a-z0-9-]+)'", rule["rule"])} - known):
        yield f"{CRD}: spec.taints.causes: no rule has the cause {cause}; remove it from rule and messages"
    cells = " ".join(re.findall(r"(?m)^\| (`.+?) \|", runbook()[ACT, ""]))
    for cause in sorted({*re.findall(r"`([a-z0-9-]+)`", cells)} - known):
        yield f'{RUNBOOK}: {cause}: no rule has this cause; remove it from "{ACT}"'


# -- what the operator writes and reads


def crds() -> Iterator[str]:
    """What CRDs and types do not have alike; fields without a description or a bound."""
    for (plural, name), kind in SCHEMAS.items():
        schema, file = part(plural, name), f"crds/{plural}.yaml"
        if kind is not None:
            yield from (f"{file}: {line}" for line in differences(schema, types.type_info(kind), name))
        for path, node in nodes_of(schema, name):
            if not path.endswith(("[]", "{}")) and not node.get("description", "").endswith((".", ".)")):
                yield f"{file}: {path}: not described; add a description, in full sentences"
            if lack := unbounded(node):
                yield f"{file}: {path}: {lack}"


def policy() -> Iterator[str]:
    """Policy fields; `crds` compares them with the CRD."""
    full = msgspec.yaml.decode(text(FULL))
    every = list(fields(PolicySpec, "spec", lists=False))
    yield from lacking(
        every,
        (lambda t: at(full, t.name) is not None, f"no example; add {{t.name}} to {FULL}"),
        (token("operator/src"), "no code reads it; add the code, and its test"),
        (
            lambda t: t.more is Thresholds or is_tested(t),
            "no test names it; add one to the test of the code that reads it",
        ),
        (
            lambda t: (
                t.more is not Hysteresis
                or f".{t.spellings[0]}"
                in tokens(f"{OPERATOR}/core/hysteresis.py") | tokens(f"{OPERATOR}/api/policy.py")
            ),
            f"no gate counts with it; read it in {OPERATOR}/core/hysteresis.py, and add a test to "
            "tests/unit/test_hysteresis.py",
        ),
    )


def labels() -> Iterator[str]:
    defined = {
        label.key: Thing(file_of(module), label.key, (label.key.rpartition("/")[2],), label)
        for module in modules_of(core)
        for value in vars(module).values()
        for label in (value if isinstance(value, tuple) else (value,))
        if isinstance(label, Label)
    }
    known = {label.key for label in every_label()}
    yield from lacking(
        defined.values(),
        (lambda t: t.name in known, "no kind has it; add it to `labels` of its kind in {t.file}"),
        (
            lambda t: any(row("README.md", f"`{k}`")(t) for k in (t.name, f"-{t.name.rpartition('-')[2]}")),
            "README lacks it; add a row `{t.name}` to its table of labels in README.md",
        ),
        tested("the test of its kind"),
    )
    taints = [
        Thing(f"{OPERATOR}/names.py", name, (name,), key)
        for name, key in vars(names).items()
        if name.startswith("TAINT_") and key.startswith(names.PREFIX)
    ]
    yield from lacking(
        taints,
        (
            lambda t: t.more in names.NODE_TAINTS,
            "not explained; add {t.name}: (VALUES, MEANING) to NODE_TAINTS in {t.file}",
        ),
        (
            row("README.md", "`{t.more}`"),
            "README lacks it; add a row `{t.more}` to its table of taints in README.md",
        ),
        (
            lambda t: f".{t.name}" in tokens(OPERATOR) or t.more in names.TAINTS_OF_FAULTS,
            f"nothing sets it; set it in {OPERATOR}/core/gates.py",
        ),
        tested("tests/unit/test_decision.py"),
    )


def reasons() -> Iterator[str]:
    """Reasons of conditions and events, and why a node has no NCCL run."""
    conditions = part(names.POLICY_PLURAL, "status")["properties"]["conditions"]["description"]
    enums = (Reason, PolicyReason, BudgetReason, BreakerReason, WatchersReason, PaceReason)
    yield from lacking(
        (Thing(file_of(e), f"{e.__name__}.{m.name}", (m.name, m.value), m) for e in enums for m in e),
        (token(OPERATOR), "nothing gives it; give it, or remove it"),
        tested("the test of the code that gives it"),
        (
            lambda t: isinstance(t.more, Reason | BreakerReason) or t.more.value in conditions,
            f"the CRD lacks it; add {{t.more.value}} to the description of status.conditions in {CRD}",
        ),
        (
            lambda t: t.more not in EXPLAINED or f"- `{t.more.value}`: " in text(RUNBOOK),
            f"the runbook lacks it; add `- `{{t.more.value}}`: ...` to {RUNBOOK}",
        ),
    )
    yield from lacking(
        (Thing(file_of(Why), f"Why.{why.name}", more=why) for why in Why),
        (
            lambda t: f"`{t.more.value}`" in runbook()[NO_RUN, ""],
            f'the runbook lacks it; add `{{t.more.value}}` to "{NO_RUN}" in {RUNBOOK}',
        ),
    )


def all_metrics() -> Iterator[str]:
    """Metrics of the operator and of the BMC reader; their reference page is generated."""
    for module in (metrics, reader_metrics):
        own = file_of(module)
        yield from lacking(
            (
                Thing(
                    own,
                    name,
                    tuple(metric._name + end for end in ("", "_total", "_count", "_bucket")),
                    metric,
                )
                for name, metric in vars(module.Metrics()).items()
                if isinstance(metric, MetricWrapperBase)
            ),
            (
                lambda t: t.more._documentation.endswith("."),
                "no sentence says what it is; add one to its help",
            ),
            (partial(counted, own=own), "nothing counts it; count it in the module that knows"),
            tested("the test of the module that counts (tests/unit/test_operator_SUBJECT.py)"),
        )


def counted(metric: Thing, *, own: str) -> bool:
    """Where it is set by its attribute, or by its name: a kind of probe gives its amounts so."""
    others = tuple(file for file in files(OPERATOR, ".py") if file != own)
    by_name = f'("{metric.name}", ' in code(*others)
    return by_name or f".{metric.name}" in tokens(*others) or code(own).count(f"self.{metric.name}") > 1


def kinds() -> Iterator[str]:
    registry = f"{OPERATOR}/core/probes/registry.py"
    defined = {
        value
        for module in modules_of(probes)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Kind) and not inspect.isabstract(value)
    }
    yield from lacking(
        (Thing(file_of(kind), kind.__name__, more=kind) for kind in sorted(defined, key=str)),
        (lambda t: t.more in map(type, EVERY.values()), f"not registered; add {{t.name}}() to {registry}"),
    )
    own = {field.name for field in msgspec.structs.fields(Probes)} | WITHOUT_SETTINGS
    yield from lacking(
        (Thing(file_of(type(k)), n, (f"PROBE_{n.upper()}", type(k).__name__), k) for n, k in EVERY.items()),
        (
            lambda t: t.name in names.PROBES or t.name not in KINDS,
            f"not among the probes; add it to PROBES in {OPERATOR}/names.py, in the order of the registry",
        ),
        (
            lambda t: t.name in own,
            f"a policy cannot set it; add it to Probes in {OPERATOR}/api/probe_settings.py, and spec.probes."
            f"{{t.name}} to {CRD} and {FULL}",
        ),
        (
            lambda t: t.name in {*once.MEASURE} | WITHOUT_PROGRAM,
            f"it has no program; add {PROBES}/{{t.name}}.py, and its entry to MEASURE in {PROBES}/once.py",
        ),
        tested("tests/unit/test_probe_{t.name}.py and tests/unit/test_probe_kinds.py"),
    )
    yield from lacking(
        (Thing(f"{PROBES}/once.py", name) for name in once.MEASURE),
        (lambda t: t.name in settings.DEADLINES, f"no deadline; add it to DEADLINES in {PROBES}/settings.py"),
    )
    yield from lacking(
        (Thing(f"{OPERATOR}/names.py", name) for name in names.PROBES),
        (lambda t: t.name in KINDS, f"a probe without a kind; add its kind to KINDS in {registry}"),
    )


# -- pages


def generated(*, write: bool = False) -> Iterator[str]:
    """Generated files that differ from their sources, or cannot be made."""
    for generator in ("docs/generate.py", "charts/generate.py"):
        for path, make in runpy.run_path(generator)["outputs"]().items():
            try:
                wanted = make()
            except SystemExit as error:
                yield f"{generator}: {path}: cannot be made: {error}"
                continue
            if write and wanted is None:
                path.unlink()
            elif write:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(wanted, encoding="utf-8")
            elif wanted is None or text(str(path)) != wanted:
                yield f"{path}: differs from its source, or has none; run make reference"


def contributing() -> Iterator[str]:
    """Files that CONTRIBUTING.md names in its tables and that are not there, and wrong numbers of files."""
    for line in text("CONTRIBUTING.md").splitlines():
        paths = re.findall(r"`([\w.-]+/[\w./-]+)`", line) if line.startswith("| ") else []
        for path in paths:
            if not any(Path().glob(re.sub(r"[A-Z]{4,}", "*", path))):
                yield f"CONTRIBUTING.md: {path}: no such file; name the one that took its place"
        for count in re.findall(r"\| (\d+)[^|]*\|$", line):
            if abs(len(paths) - int(count)) > ("its" in line):
                yield f"CONTRIBUTING.md: {line[:30]}...: {len(paths)} files; correct the number {count}"


CHECKS = (
    *(judge, causes, crds, policy, labels, reasons, all_metrics, kinds),
    *(contract, driver, chart, collection, contributing, generated),
)


def main(arguments: list[str]) -> int:
    checks = [generated(write=True)] if arguments == ["--write"] else [check() for check in CHECKS]
    lines = [line for check in checks for line in check]
    print("\n".join(lines) if lines else "complete: nothing is missing")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
