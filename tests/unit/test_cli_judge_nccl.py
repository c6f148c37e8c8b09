"""`nodegauge judge` of benchmarks: logs of nccl-tests, results of the probe, and reports graded again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec import to_builtins

from nodegauge_cli.__main__ import main
from nodegauge_contract import Arm, ArmName, Cell, Gpu, NcclResult, encode, encode_message
from nodegauge_contract import Result as Document
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_operator import names
from nodegauge_operator.api.report import ProbeStatus, ReportStatus

FIXTURES = Path(__file__).parents[1] / "fixtures"
GIB = 2**30
ALL_REDUCE = FIXTURES / "nccl-tests_allreduce_superbench.log"
ALL_GATHER = FIXTURES / "nccl-tests_allgather_superbench.log"
TWO_NODES = FIXTURES / "nccl-tests_allreduce_h100x16_oci.log"
STRICT = """
kind: GPUValidationPolicy
spec:
  expectations:
  - {gpu: "*A100*", count: 8, collective: all_reduce, bytes: 1073741824, busbw: 300, source: ours}
"""


def judge(*arguments: str | Path, stdin: str | None = None) -> Result:
    """The command's outcome in this process."""
    return CliRunner().invoke(main, ["judge", *map(str, arguments)], input=stdin)


def flat(outcome: Result) -> str:
    """Its output on one line."""
    return " ".join(outcome.output.split())


def document(*, us: float = 8159.5, wrong: int = 0) -> Document:
    """A benchmark of eight A100: one cell."""
    cell = Cell(collective="all_reduce", bytes=GIB, us=us, wrong=wrong)
    uuids = [f"GPU-{number}" for number in range(8)]
    gpus = [Gpu(index=number, uuid=uuid, name="NVIDIA A100-SXM4-80GB") for number, uuid in enumerate(uuids)]
    nccl = NcclResult(engine="nccl4py", ranks=8, uuids=uuids, arms=[Arm(name=ArmName.DEFAULT, cells=[cell])])
    return Document(probe="nccl", node="n1", gpus=gpus, nccl=nccl)


def report(raw: str) -> str:
    """A NodeReport as `kubectl get -o yaml` prints it, with that memory of a benchmark."""
    status = to_builtins(ReportStatus(probes=[ProbeStatus(name=names.PROBE_NCCL, history=raw)]))
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.REPORT_KIND,
        "metadata": {"name": "n1", "uid": "u", "resourceVersion": "7"},
        "status": status,
    }
    text: str = yaml.safe_dump(body)
    return text


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        (ALL_REDUCE, 0, "PASS 8x A100-SXM4-40GB: collectives reach their expected bandwidth"),
        (ALL_REDUCE, 0, "busbw all_reduce 229 GB/s"),
        (ALL_GATHER, 0, "busbw all_gather 220 GB/s"),
        (TWO_NODES, 3, "UNKNOWN not-gradable: 2 nodes"),
    ],
)
def test_every_recorded_log_is_answered(path: Path, code: int, words: str) -> None:
    """Graded by a row where one fits; two nodes are not this judge's business, and it says so."""
    outcome = judge(path)
    assert (outcome.exit_code, words in flat(outcome)) == (code, True), outcome.output


def test_logs_can_be_put_together() -> None:
    """The tables of several collectives on the same GPUs are one benchmark."""
    output = flat(judge("-", stdin=ALL_REDUCE.read_text() + ALL_GATHER.read_text().replace("112372", "1")))
    assert "busbw all_reduce 229, all_gather 220 GB/s" in output


def test_a_log_is_graded_by_the_rows_of_a_policy(tmp_path: Path) -> None:
    """Below 0.9 of the policy's 300 GB/s it warns, the second time it fails; the finding names the row."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(STRICT)
    once = judge(ALL_REDUCE, "--policy", policy)
    assert (once.exit_code, once.output[:4]) == (0, "WARN")
    assert "busbw-low" in once.output
    assert "the floor is 270 GB/s: 0.9 of 300 GB/s (ours)" in flat(once)
    twice = judge(ALL_REDUCE, "--policy", policy, "--before", ALL_REDUCE)
    assert (twice.exit_code, twice.output[:4]) == (1, "FAIL")


def test_a_policy_with_a_bad_row_is_named(tmp_path: Path) -> None:
    """Exit code 2, file and field."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(STRICT.replace("count: 8", "count: 1"))
    outcome = judge(ALL_REDUCE, "--policy", policy)
    assert outcome.exit_code == 2
    assert "policy.yaml: spec.expectations: Expected `int` >= 2 - at `$[0].count`" in flat(outcome)


@pytest.mark.parametrize("packed", [False, True])
def test_a_result_of_the_probe_is_judged_like_a_log(packed: bool) -> None:
    """As JSON, and as the packed message of a pod."""
    text = encode_message(document(), limit=700) if packed else encode(document()).decode()
    outcome = judge("-", stdin=text)
    assert outcome.exit_code == 0, outcome.output
    assert "busbw all_reduce 230 GB/s" in flat(outcome)
    assert "engine nccl4py" in flat(outcome)
    assert "default all_reduce 1 GiB 8160 us 230.3 GB/s" in flat(outcome)


def test_wrong_data_fails_whatever_the_speed() -> None:
    """Exit code 1 and the row of the catalogue, with the taint that would follow."""
    outcome = judge("-", stdin=encode(document(wrong=3)).decode())
    assert outcome.exit_code == 1
    assert "nccl-wrong-data" in outcome.output
    assert "taint unhealthy=nccl after this run (nccl-wrong-data)" in flat(outcome)


def test_an_earlier_result_tells_whether_runs_agree(tmp_path: Path) -> None:
    """Two runs further apart than a tenth ask for a third."""
    earlier = tmp_path / "earlier.json"
    earlier.write_bytes(encode(document(us=6500.0)))
    assert "rerun needed" not in flat(judge("-", stdin=encode(document()).decode()))
    later = judge("-", "--before", earlier, stdin=encode(document()).decode())
    assert "rerun needed" in flat(later)
    assert "busbw-disagrees" in later.output


def test_a_report_is_graded_again(tmp_path: Path) -> None:
    """The same numbers: as before by default, and otherwise by a policy that came since."""
    text = report(judge_nccl(document()).record)
    assert judge("-", stdin=text).output.startswith("PASS")
    policy = tmp_path / "policy.yaml"
    policy.write_text(STRICT)
    again = judge("-", "--policy", policy, stdin=text)
    assert (again.exit_code, again.output[:4]) == (0, "WARN")
    assert "busbw-low" in again.output
    assert "node n1" in again.output


def test_json_is_the_whole_judgement() -> None:
    """With agreement, figures and findings, and the same exit code."""
    outcome = judge(TWO_NODES, "--format", "json")
    said = json.loads(outcome.output)
    assert (outcome.exit_code, said["summary"], said["busbw"]) == (3, "not-gradable: 2 nodes", {})


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ((), ALL_REDUCE.read_text().split("#       size")[0], "no table: expected a line `# size count"),
        ((), ALL_REDUCE.read_text().replace("float", "quad"), "line 17: unknown type quad"),
        (
            ("--collective", "all_gather"),
            ALL_REDUCE.read_text(),
            "the table is of all_reduce, not of all_gather",
        ),
        ((), report(""), "the NodeReport of n1 contains no NCCL run"),
        ((), report("x").replace("name: n1", "nom: n1"), "a NodeReport without metadata.name"),
        ((), report("x") + "---\n" + report("x"), "2 documents of kind NodeReport, expected one"),
        ((), report("x").replace("probes:", "probes: 3 #"), "not readable as YAML"),
        (("--before", ALL_REDUCE), report("x"), "--before is for results"),
        ((), encode(Document(probe="pull")).decode(), "results of probe 'pull' cannot be judged"),
        ((), "hello\n", "a NodeReport (kind: NodeReport) or a log of nccl-tests"),
    ],
    ids=["no-table", "type", "collective", "empty", "nameless", "two", "yaml", "before", "pull", "other"],
)
def test_what_cannot_be_judged_is_bad_input(
    arguments: tuple[str | Path, ...], stdin: str, words: str
) -> None:
    """Exit code 2, with the place and what was expected there."""
    outcome = judge("-", *arguments, stdin=stdin)
    assert (outcome.exit_code, words in flat(outcome)) == (2, True), outcome.output


def test_a_report_that_somebody_broke_is_unknown() -> None:
    """A memory that cannot be read is no benchmark, and no error of ours."""
    assert judge("-", stdin=report("x")).exit_code == 3


def test_nothing_is_wider_than_a_terminal() -> None:
    """80 columns, and no control characters from a document."""
    evil = encode(document()).decode().replace("nccl4py", "\\u001b]0;owned\\u0007")
    for outcome in (judge(ALL_REDUCE), judge(TWO_NODES), judge("-", stdin=evil)):
        assert max(map(len, outcome.output.splitlines())) <= 80
        assert "\x1b" not in outcome.output
