"""`make check` names what an incomplete change of each kind in CONTRIBUTING.md lacks, and where to add it.

All changes are made at once, in a copy of the checkout, which the real check looks at once.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JUDGE, OPERATOR = "operator/src/nodegauge_judge", "operator/src/nodegauge_operator"
CONTRACT, PROBES = "probes/src/nodegauge_contract", "probes/src/nodegauge_probes"
BMC = f"{OPERATOR}/core/probes/bmc.py"
NAMES, POLICY, CHASSIS = f"{OPERATOR}/names.py", f"{OPERATOR}/api/policy.py", f"{CONTRACT}/chassis.py"
CRD, FULL = "crds/gpuvalidationpolicies.yaml", "crds/examples/full.yaml"
VALUES, SCHEMA = "charts/nodegauge/values.yaml", "charts/nodegauge/values.schema.json"
TELEMETRY, MACHINE = f"{PROBES}/collectors/telemetry.py", "tests/testbed/profiles/half-done.yaml"
MODULE, ROLE = "ansible/plugins/modules/half_done.py", "ansible/roles/half_done"
METRIC = '        self.half_done = Gauge("nodegauge_half_done", "Half", registry=self.registry)\n'
ENTRY = """- {model: Half, gpu: ["*Half*"], source: ours,
   bandwidth: [{count: 8, collective: all_reduce, bytes: 1, busbw: 9}]}
"""
KIND = "from nodegauge_operator.core.probes.bmc import BmcKind\nclass HalfDoneKind(BmcKind):\n    name = ''\n"
LABEL = "from msgspec import structs\nHALF = structs.replace(PSU, key='nodegauge.dev/half-done')\n"
RULE = """
from msgspec import structs
from nodegauge_judge.model import Cause, Gate, GateKind
GATE = Gate(kind=GateKind.UNHEALTHY, cause=Cause.HALF)
RULES = (*RULES, structs.replace(RULES[0], code="half-done", gate=GATE, readable=lambda case: True))
"""
DONE: dict[str, tuple[list[tuple[str, str, str]], list[tuple[str, str]]]] = {
    "a finding": (
        [
            (f"{JUDGE}/rules/power.py", "", RULE),
            (f"{JUDGE}/model.py", '    THERMAL = "thermal"', '    HALF = "half"\n'),
            (f"{JUDGE}/thresholds.py", "    hot_margin:", "    half_done: Ratio = 0.5\n"),
        ],
        [
            (f"{JUDGE}/rules/power.py: half-done: no test", "tests/unit/test_judge_power.py"),
            (f"{JUDGE}/model.py: cause half: the runbook lacks it", "`### half`"),
            (f"{JUDGE}/model.py: cause half: nobody knows whether to act", "docs/runbook.md"),
            (f"{JUDGE}/model.py: cause half: README lacks it", "`nodegauge.dev/unhealthy`"),
            (f"{JUDGE}/model.py: cause half: the taint lacks it", "NODE_TAINTS"),
            (f"{JUDGE}/model.py: cause half: a policy cannot name it", CRD),
            (f"{JUDGE}/thresholds.py: half_done: not explained", "Default 0.5."),
            (f"{CRD}: spec.thresholds.halfDone: not in the CRD", "add it there"),
            (f"{JUDGE}/thresholds.py: spec.thresholds.halfDone: no example", FULL),
            ("docs/reference/findings.md: ", "make reference"),
        ],
    ),
    "a GPU model, or its expected bandwidth": (
        [(f"{JUDGE}/gpu_models.yaml", "", ENTRY)],
        [
            (f"{JUDGE}/gpu_models.yaml: Half: no test", "test_gpu_models.py"),
            (f"{JUDGE}/gpu_models.yaml: *Half*: no source", "add source: "),
            (f"{JUDGE}/gpu_models.yaml: *Half*: no test", "test_judge_nccl_floors.py"),
        ],
    ),
    "a label": (
        [(BMC, "", LABEL), (NAMES, '    VALIDATED = "Validated"', '    HALF_DONE = "HalfDone"\n')],
        [
            (f"{BMC}: nodegauge.dev/half-done: no kind has it", "`labels`"),
            (f"{BMC}: nodegauge.dev/half-done: README lacks it", "`nodegauge.dev/half-done`"),
            (f"{BMC}: nodegauge.dev/half-done: no test", "the test of its kind"),
            (f"{NAMES}: Reason.HALF_DONE: nothing gives it", ""),
            ("docs/generate.py: docs/reference/labels.md: cannot be made", "HALF_DONE"),
        ],
    ),
    "a policy field": (
        [(POLICY, "    concurrent_probes: ", "    half_done_field: int = 1\n")],
        [
            (f"{CRD}: spec.budget.halfDoneField: not in the CRD", "add it there"),
            (f"{POLICY}: spec.budget.halfDoneField: no example", FULL),
            (f"{POLICY}: spec.budget.halfDoneField: no code reads it", ""),
            (f"{POLICY}: spec.budget.halfDoneField: no test", ""),
        ],
    ),
    "a kind of probe": (
        [(f"{OPERATOR}/core/probes/half_done.py", "", KIND)],
        [(f"{OPERATOR}/core/probes/half_done.py: HalfDoneKind: not registered", "registry.py")],
    ),
    "a hysteresis number": (
        [(POLICY, "    enter_runs: ", "    half_runs: int = 1\n")],
        [
            (f"{CRD}: spec.hysteresis.halfRuns: not in the CRD", "add it there"),
            (f"{POLICY}: spec.hysteresis.halfRuns: no gate counts with it", "core/hysteresis.py"),
        ],
    ),
    "an NVML field": (
        [
            (f"{CONTRACT}/gpu.py", "\n\nclass Clocks(", "    half_mw: Int = NOT_READ\n"),
            (TELEMETRY, "", 'FI_HALF, CALL = 9999, "nvmlDeviceGetHalfDone"\n'),
        ],
        [
            (f"{CONTRACT}/gpu.py: gpus.power.half_mw: in no golden", f"MINOR in {CONTRACT}/model.py"),
            (f"{CONTRACT}/gpu.py: gpus.power.half_mw: nothing reads it", PROBES),
            (f"{CONTRACT}/gpu.py: gpus.power.half_mw: no test", "tests/probes/test_health.py"),
            (f"{TELEMETRY}: FI_HALF (9999): the simulated driver", "driver/src/fields.c"),
            (f"{TELEMETRY}: nvmlDeviceGetHalfDone: the simulated driver", "driver/releases.yaml"),
        ],
    ),
    "a value from sysfs, such as a NIC's": (
        [(f"{PROBES}/host/rdma.py", "", 'HALF = Path("/sys") / "half_done"\n')],
        [(f"{PROBES}/host/rdma.py: half_done: no simulated machine", "hardware/sysfs.py")],
    ),
    "a sensor of the BMC": (
        [(CHASSIS, "\n\nclass Redundancy(", "    half_volts: Num = NOT_READ\n")],
        [
            (f"{CHASSIS}: supplies.halfVolts: nothing reads it", "nodegauge_bmc"),
            (f"{CHASSIS}: supplies.halfVolts: no test", "test_bmc_redfish.py"),
        ],
    ),
    "a chart value": (
        [(VALUES, "", "halfDone:\n  value: 1\n")],
        [
            (f"{VALUES}: halfDone: the schema lacks it", SCHEMA),
            (f"{VALUES}: halfDone.value: no template reads it", "charts/nodegauge/templates"),
            (f"{VALUES}: halfDone.value: the variant", "variants/all.yaml"),
            ("charts/generate.py: docs/reference/values.md: cannot be made", "halfDone.value has no comment"),
        ],
    ),
    "a simulated machine": (
        [(MACHINE, "", "extends: pcie-phb-2\nname: half-done\ntitle: Half\nhealthy: null\n")],
        [(f"{MACHINE}: ", "`healthy`")],
    ),
    "a metric": (
        [(f"{OPERATOR}/metrics.py", "        self._of_nodes()", METRIC)],
        [
            (f"{OPERATOR}/metrics.py: half_done: no sentence", ""),
            (f"{OPERATOR}/metrics.py: half_done: nothing counts it", ""),
            (f"{OPERATOR}/metrics.py: half_done: no test", "test_operator_SUBJECT.py"),
            ("docs/reference/metrics.md: ", "make reference"),
        ],
    ),
    "a module of the collection": (
        [(MODULE, "", '\nDOCUMENTATION = ""\n')],
        [
            (f"{MODULE}: half_done: no EXAMPLES", MODULE),
            (f"{MODULE}: half_done: README lacks it", "ansible/README.md"),
            (f"{MODULE}: half_done: sanity lacks it", "ignore-2.16.txt"),
            (f"{MODULE}: half_done: no test", "tests/collection/test_half_done.py"),
        ],
    ),
    "a role of the collection": (
        [(f"{ROLE}/tasks/main.yml", "", "[]\n"), (f"{ROLE}/defaults/main.yml", "", "depth: 1\n")],
        [
            (f"{ROLE}: half_done: no meta/main.yml", f"{ROLE}/meta/main.yml"),
            (f"{ROLE}: half_done: no example", f"{ROLE}/README.md"),
            (f"{ROLE}/defaults/main.yml: depth: the role's name is missing", "half_done_depth"),
            (f"{ROLE}/defaults/main.yml: depth: not described", "argument_specs.yml"),
        ],
    ),
}
"""By kind: what is done (file, the text before which it is put, or its end, what) and what the check must say
(how a line begins, and what it names besides)."""


def test_what_an_incomplete_change_lacks_is_named(tmp_path: Path) -> None:
    """Every missing thing of every kind, with its file and the way out, and nothing else, in one run."""
    skipped = shutil.ignore_patterns(".?*", "__pycache__", "fixtures", Path(__file__).name, "dist", "build")
    checkout = shutil.copytree(ROOT, tmp_path / "checkout", ignore=skipped)
    shutil.copytree(ROOT / ".ci", checkout / ".ci")
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    for changes, _ in DONE.values():
        for file, before, new in changes:
            path = checkout / file
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            at = text.index(before) if before else len(text)
            path.write_text(text[:at] + new + text[at:], encoding="utf-8")
    paths = [str(checkout / folder) for folder in ("operator/src", "probes/src", "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, ".ci/complete.py"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    wanted = [(start, out) for _, lacks in DONE.values() for start, out in lacks]
    unsaid = [w for w in wanted if not any(line.startswith(w[0]) and w[1] in line for line in lines)]
    assert unsaid == [], "\n".join(lines)
    others = [line for line in lines if not re.search(r"half|make reference$", line, re.IGNORECASE)]
    assert others == []


def test_every_kind_of_change_has_its_incomplete_one() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(" kinds of change\n")[2]
    assert re.findall(r"^\| (an? [^|]+?) \|", section, re.MULTILINE) == [*DONE]
