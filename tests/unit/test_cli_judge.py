"""`nodegauge judge FILE`: the inputs it accepts, its output, and exit codes for scripts."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec import to_builtins

import nodegauge_contract as contract
import support.nccl_results as nccl
import support.results as made
from nodegauge_cli.__main__ import SUBCOMMANDS
from nodegauge_contract import NOT_READ
from nodegauge_contract import Result as Document
from nodegauge_contract.model import MAJOR, MINOR
from nodegauge_judge import CATALOGUE, Judgement, Verdict, judge_health
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_operator import names
from nodegauge_operator.api.report import ProbeStatus, ReportStatus
from support.feed_windows import STARVED_BY_A_DISK
from support.judge_command import FIXTURES, flat, judge, written
from support.load_results import everywhere, loaded

HOT = made.every_gpu(made.titan(), temperature=contract.Temperature(gpu=78, gpu_max=85), window=None)
REFUSED = made.with_pair(made.h100(), 0, 1, read=5)
VERSION = f'"version":"{MAJOR}.{MINOR}"'.encode()
UNREAD = Document(probe="health", problem=contract.Problem(kind="library-not-found", message="no such file"))
POLICY = Path(__file__).with_name("strict-policy.yaml").read_text("utf-8")
ALL_REDUCE = FIXTURES / "nccl-tests_allreduce_superbench.log"
TWO_NODES = FIXTURES / "nccl-tests_allreduce_h100x16_oci.log"


def nccl_result(gbps: float = 230.28, *, wrong: int = 0) -> Document:
    cells = [nccl.cell(of, nccl.GIB, gbps, ranks=8, wrong=wrong) for of in (nccl.AR, nccl.AG, nccl.RS)]
    return nccl.node(made.a100(), nccl.arm(contract.ArmName.DEFAULT, cells))


def report(record: str) -> str:
    health = ProbeStatus(name=names.PROBE_HEALTH, verdict=Verdict.PASS, read_at="2026-11-26T11:48:28Z")
    probes = [health, ProbeStatus(name=names.PROBE_NCCL, history=record)]
    status = to_builtins(ReportStatus(verdict=Verdict.PASS, raw_verdict=Verdict.PASS, probes=probes))
    kind = {"apiVersion": names.API_VERSION, "kind": names.REPORT_KIND}
    metadata = {"name": "n1", "uid": "u", "resourceVersion": "7"}
    return str(yaml.safe_dump(kind | {"metadata": metadata, "status": status}))


# -- inputs


@pytest.mark.parametrize(
    ("document", "code", "verdict"),
    [
        (made.titan(), 0, "PASS"),
        (made.with_gpu(HOT, 0, temperature=contract.Temperature(gpu=85, gpu_max=85)), 0, "WARN"),
        (REFUSED, 1, "FAIL"),
        (UNREAD, 3, "UNKNOWN"),
        (nccl_result(), 0, "PASS"),
        (nccl_result(wrong=3), 1, "FAIL"),
        (loaded(), 0, "PASS"),
        (everywhere(steady_mw=300_000), 3, "NO-LOAD"),
        (loaded(skipped="busy", message="a job runs on GPU 1"), 3, "SKIPPED"),
        (everywhere(tflops=NOT_READ, steady_c=NOT_READ, max_c=NOT_READ), 0, "WARN"),
    ],
    ids=range(10),
)
def test_the_exit_code_is_the_verdict(document: Document, code: int, verdict: str) -> None:
    """0 pass or warn, 1 fail, 3 unknown; the verdict is the first word."""
    outcome = judge("-", stdin=document)
    assert (outcome.exit_code, outcome.output.split()[0]) == (code, verdict)


@pytest.mark.parametrize(
    "form",
    [
        contract.encode(made.dgx1()).decode(),
        msgspec.json.encode(made.dgx1()).decode(),
        contract.text(made.dgx1()),
        "a line of a log\n" + contract.encode(made.dgx1()).decode() + "\nanother line\n",
        "a line of a log\n{not json\n" + contract.encode(made.dgx1()).decode() + "\n{}\n",
        "a line of a log\n" * 20_000 + contract.encode(made.dgx1()).decode(),
    ],
    ids=["json", "records", "reading", "log", "log-json", "long-log"],
)
def test_a_result_is_read_in_every_form(form: str) -> None:
    outcome = judge("-", stdin=form)
    assert outcome.exit_code == 0, outcome.output
    assert "8x Tesla V100-SXM2-32GB: healthy" in outcome.output


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "the probe wrote no result"),
        (b"{}", "expected 'nodegauge.dev/probe-result'"),
        (b"hello\n", "a NodeReport (kind: NodeReport), a log of nccl-tests or pasted output"),
        (b"\xff\xfe", "not UTF-8 text (byte 0)"),
        (b"x" * 2_000_000, "more than 1048576 bytes"),
        (contract.encode(made.titan())[:-9], "not a result document: Input data was truncated"),
        (contract.encode(made.titan()).replace(VERSION, b'"version":"2.0"'), "major version 2"),
        (contract.encode(Document(probe="pull")), "results of probe 'pull' cannot be judged"),
        (ALL_REDUCE.read_text().replace("float", "quad"), "line 17: unknown type quad"),
        (report("x").replace("name: n1", "nom: n1"), "a NodeReport without metadata.name"),
        (report("x") + "---\n" + report("x"), "2 documents of kind NodeReport, expected one of each node"),
        (report("x").replace("probes:", "probes: 3 #"), "not readable as YAML"),
    ],
    ids=range(12),
)
def test_bad_input_is_named_with_exit_code_2(data: bytes | str, part: str) -> None:
    outcome = judge("-", stdin=data)
    assert (outcome.exit_code, part in flat(outcome)) == (2, True), outcome.output
    assert outcome.output.startswith("Error: ")


def test_bad_arguments_end_with_exit_code_2(tmp_path: Path) -> None:
    assert judge("/nonexistent/result.json").exit_code == 2
    bad = judge("-", "--before", written(tmp_path / "bad.json", "{}"), stdin=made.titan())
    assert (bad.exit_code, "bad.json" in bad.output) == (2, True)
    past = judge("-", "--before", ALL_REDUCE, stdin=report("x"))
    assert (past.exit_code, "--before is for results" in flat(past)) == (2, True)
    other = judge(ALL_REDUCE, "--collective", "all_gather")
    assert (other.exit_code, "of all_reduce, not of all_gather" in flat(other)) == (2, True)


# -- output


def test_the_text_says_what_is_wrong_and_what_to_do() -> None:
    outcome = judge("-", stdin=REFUSED)
    output = flat(outcome)
    assert "unknown class (P2pRefused)" in output
    assert "fail p2p-refused GPU 0 (0000:0f:00.0) - GPU 1 (0000:10:00.0)" in output
    for number, step in enumerate(CATALOGUE["p2p-refused"].way_out, 1):
        assert f"{number}. {step}" in output
    assert "Next:" not in output
    assert "GPU7  NV18" in outcome.output
    assert "NV#  = Connection traversing a bonded set of # NVLinks" in outcome.output


def test_the_head_shows_heat_supply_and_the_taints_that_follow() -> None:
    sick = flat(judge("-", stdin=made.every_gpu(REFUSED, repair=contract.Repair(action=2))))
    assert "taint unhealthy=p2p after 2 such runs in a row (p2p-refused)" in sick
    assert "taint unhealthy=recovery-action after this run (recovery-action)" in sick
    assert "heat GPU 0 is the hottest at 32 °C (excellent)" in sick
    assert "psu unknown" in sick
    assert "taint none from this result" in flat(judge("-", stdin=made.titan()))
    wrong = flat(judge("-", stdin=nccl_result(wrong=3)))
    assert "taint unhealthy=nccl after this run (nccl-wrong-data)" in wrong


def test_an_unreadable_result_has_no_load_and_no_taints() -> None:
    output = judge("-", stdin=UNREAD).output
    assert not {"load", "heat", "psu", "taint"} & {line.split(" ")[0] for line in output.splitlines()}


def test_the_steps_of_a_code_are_printed_once() -> None:
    output = judge(
        "-", stdin=made.with_gpu(made.phb(), 0, xids=contract.Xids(registered=True, seen=[79, 63]))
    ).output
    assert output.count("NVIDIA advises") == 1
    assert output.count("What to do: see above.") == 1


def test_piped_text_is_plain_and_fits_80_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "result.json", REFUSED)
    command = [sys.executable, "-m", "nodegauge_cli", "judge", str(path)]
    env = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "FORCE_COLOR": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    above = lines[: next(n for n, line in enumerate(lines) if "GPU0  GPU1" in line)]
    assert "\x1b" not in done.stdout
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(len(line) for line in above) <= 80


def test_text_from_a_document_cannot_control_a_terminal() -> None:
    evil = made.with_gpu(made.phb(), 0, name="[bold]\x1b]0;owned\x07 GPU")
    output = judge("-", stdin=msgspec.structs.replace(evil, node="n\x1b[2J")).output
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[bold]" in output


def test_json_is_the_whole_judgement() -> None:
    outcome = judge("-", "--format", "json", stdin=REFUSED)
    assert outcome.exit_code == 1
    assert msgspec.convert(json.loads(outcome.output), Judgement) == judge_health(REFUSED)
    outcome = judge(TWO_NODES, "--format", "json")
    document = json.loads(outcome.output)
    assert (outcome.exit_code, document["summary"], document["busbw"]) == (3, "not-gradable: 2 nodes", {})


# -- earlier results and policies


def test_a_policy_gives_thresholds_and_expectations(tmp_path: Path) -> None:
    policy = written(tmp_path / "policy.yaml", "kind: Namespace\n---\n" + POLICY)
    assert judge("-", stdin=HOT).output.startswith("PASS")
    assert judge("-", "--policy", policy, stdin=HOT).output.startswith("WARN")
    three = written(tmp_path / "three.yaml", POLICY.replace("thresholds:", "expectedGpus: 3\n  thresholds:"))
    assert "The policy expects 3 GPUs, the driver lists 2" in flat(judge("-", "--policy", three, stdin=HOT))
    once = judge(ALL_REDUCE, "--policy", policy)
    assert (once.exit_code, once.output[:4]) == (0, "WARN")
    assert "the floor is 270 GB/s: 0.9 of 300 GB/s (ours)" in flat(once)
    twice = judge(ALL_REDUCE, "--policy", policy, "--before", ALL_REDUCE)
    assert (twice.exit_code, twice.output[:4]) == (1, "FAIL")
    graded = report(judge_nccl(nccl_result()).record)
    assert judge("-", stdin=graded).output.startswith("PASS")
    again = judge("-", "--policy", policy, stdin=graded)
    assert (again.exit_code, again.output[:4]) == (0, "WARN")
    assert "node n1" in again.output


@pytest.mark.parametrize(
    ("policy", "part"),
    [
        (POLICY.replace("hotMargin: 10", "hotMargin: 900"), "spec.thresholds.hotMargin"),
        ("kind: Pod\n", "0 documents of kind GPUValidationPolicy"),
        ("a: [", "not readable as YAML"),
    ],
)
def test_a_bad_policy_is_named_with_its_field(tmp_path: Path, policy: str, part: str) -> None:
    outcome = judge("-", "--policy", written(tmp_path / "policy.yaml", policy), stdin=HOT)
    assert (outcome.exit_code, part in flat(outcome)) == (2, True), outcome.output
    assert "policy.yaml" in outcome.output


# -- the command `nodegauge`


def test_judging_works_without_kubernetes_and_kopf(tmp_path: Path) -> None:
    path = written(tmp_path / "result.json", made.titan())
    block = (
        "import sys; sys.modules['kubernetes'] = None; sys.modules['kopf'] = None;"
        "from nodegauge_cli.__main__ import main; main(prog_name='nodegauge')"
    )

    def run(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", before + block, *arguments], capture_output=True, text=True, check=False
        )

    judged = run("judge", str(path))
    assert (judged.returncode, judged.stdout[:4]) == (0, "PASS"), judged.stderr
    cleaned = run("cleanup")
    assert cleaned.returncode == 1
    assert "pip install '.[operator]'" in cleaned.stderr
    alone = run("node", before="import sys; sys.modules['rich'] = None;")
    assert (alone.returncode, "pip install '.[probes,cli]'" in alone.stderr) == (2, True)
    helped = run("--help")
    assert helped.returncode == 0
    assert all(lazy.help in helped.stdout for lazy in SUBCOMMANDS.values())


def test_an_nccl_result_shows_its_cells_and_whether_a_third_run_is_needed(tmp_path: Path) -> None:
    once = flat(judge("-", stdin=contract.text(nccl_result())))
    assert "default all_reduce 1 GiB 8160 us 230.3 GB/s" in once
    assert "engine nccl4py" in once
    assert "rerun needed" not in once
    earlier = written(tmp_path / "earlier.json", nccl_result(289))
    later = flat(judge("-", "--before", earlier, stdin=nccl_result()))
    assert "rerun needed" in later
    assert "busbw-disagrees" in later


def test_a_feed_window_is_shown_on_one_screen_and_as_json() -> None:
    outcome = judge("-", stdin=STARVED_BY_A_DISK)
    assert (outcome.exit_code, len(outcome.output.splitlines()) <= 40) == (0, True)
    for part in ("gpu-underfed", "sda was busy in 97%", "NVMe", "storage 1.16, of 2", "0 waits 42 37%"):
        assert part in flat(outcome)
    shown = json.loads(judge("-", "--format", "json", stdin=STARVED_BY_A_DISK).output)
    assert (shown["cause"], shown["lost"]) == ("storage", {"storage": 1.16})
