"""`nodegauge judge FILE`: inputs it takes, what it prints, and exit codes that scripts can rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import support.results as made
from nodegauge_cli.__main__ import SUBCOMMANDS, main
from nodegauge_contract import Ecc, Problem, Repair, Temperature, Xids, encode, encode_message
from nodegauge_contract import Result as Document
from nodegauge_contract.model import MAJOR, MINOR
from nodegauge_contract.wire.codec import PREFIX
from nodegauge_judge import CATALOGUE, Judgement, judge_health

HOT = made.with_gpu(made.titan(), 0, temperature=Temperature(gpu=78, gpu_max=85), window=None)
REFUSED = made.with_pair(made.h100(), 0, 1, read=5)
VERSION = f'"version":"{MAJOR}.{MINOR}"'.encode()
UNREAD = Document(probe="health", problem=Problem(kind="library-not-found", message="no such file"))
POLICY = """
apiVersion: nodegauge.dev/v1alpha1
kind: GPUValidationPolicy
metadata: {name: strict}
spec:
  nodeSelector: {}
  thresholds: {hotMargin: 10}
"""


def judge(*arguments: str | Path, stdin: bytes | str | None = None) -> Result:
    """The command's outcome in this process."""
    return CliRunner().invoke(main, ["judge", *map(str, arguments)], input=stdin)


def written(path: Path, document: Document) -> Path:
    """The document in a file."""
    path.write_bytes(encode(document))
    return path


@pytest.mark.parametrize(
    ("document", "code", "word"),
    [(made.titan(), 0, "PASS"), (REFUSED, 1, "FAIL"), (UNREAD, 3, "UNKNOWN")],
    ids=["pass", "fail", "unknown"],
)
def test_the_exit_code_is_the_verdict(tmp_path: Path, document: Document, code: int, word: str) -> None:
    """0 pass or warn, 1 fail, 3 unknown, and the word comes first."""
    outcome = judge(written(tmp_path / "result.json", document))
    assert (outcome.exit_code, outcome.output.split()[0]) == (code, word)


def test_a_warning_is_no_failure_for_scripts(tmp_path: Path) -> None:
    """Exit code 0, the word WARN."""
    outcome = judge(
        written(tmp_path / "r.json", made.with_gpu(HOT, 0, temperature=Temperature(gpu=85, gpu_max=85)))
    )
    assert (outcome.exit_code, outcome.output.split()[0]) == (0, "WARN")


@pytest.mark.parametrize(
    "text",
    [
        encode(made.dgx1()).decode(),
        msgspec.json.format(encode(made.dgx1()), indent=2).decode(),
        encode_message(made.dgx1(), limit=4096),
        "a line of a log\n" + encode(made.dgx1()).decode() + "\nanother line\n",
        "a line of a log\n{not json\n" + encode_message(made.dgx1(), limit=4096) + "\n{}\n",
    ],
    ids=["json", "indented", "compressed", "log", "log-compressed"],
)
def test_a_document_is_read_in_every_form_that_a_probe_leaves(text: str) -> None:
    """Plain, indented, compressed, and as a line of a pod's log, from standard input."""
    outcome = judge("-", stdin=text)
    assert outcome.exit_code == 0, outcome.output
    assert "8x Tesla V100-SXM2-32GB: healthy" in outcome.output


def test_the_text_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    """Verdict, interconnect with its reason, finding with subject, every step of the way out, the matrix."""
    output = judge(written(tmp_path / "result.json", REFUSED)).output
    flat = " ".join(output.split())
    assert "unknown class (P2pRefused)" in flat
    assert "fail p2p-refused GPU 0 (0000:0f:00.0) - GPU 1 (0000:10:00.0)" in flat
    for number, step in enumerate(CATALOGUE["p2p-refused"].way_out, 1):
        assert f"{number}. {step}" in flat
    assert "Next:" not in output
    assert "GPU7  NV18" in output
    assert "NV#  = Connection traversing a bonded set of # NVLinks" in output


def test_the_head_says_load_heat_supply_and_what_would_follow(tmp_path: Path) -> None:
    """Whether it worked, how warm, what the supplies say, and each taint with the runs that it takes."""
    sick = made.every_gpu(REFUSED, repair=Repair(action=2))
    flat = " ".join(judge(written(tmp_path / "sick.json", sick)).output.split())
    assert "taint unhealthy=p2p after 2 such runs in a row (p2p-refused)" in flat
    assert "taint unhealthy=recovery-action after this run (recovery-action)" in flat
    assert "heat GPU 0 is the hottest at 32 °C (excellent)" in flat
    assert "psu unknown" in flat
    fine = " ".join(judge(written(tmp_path / "fine.json", made.titan())).output.split())
    assert "taint none from this result" in fine


def test_what_was_not_readable_has_no_load_and_no_gates(tmp_path: Path) -> None:
    """An unknown node says why, and nothing else."""
    output = judge(written(tmp_path / "result.json", UNREAD)).output
    assert not {"load", "heat", "psu", "taint"} & {line.split(" ")[0] for line in output.splitlines()}


def test_what_to_do_is_said_once_for_each_code(tmp_path: Path) -> None:
    """One Xid that fails and one that warns share their steps."""
    seen = made.with_gpu(made.phb(), 0, xids=Xids(registered=True, seen=[79, 63]))
    output = judge(written(tmp_path / "result.json", seen)).output
    assert output.count("NVIDIA advises") == 1
    assert output.count("What to do: see above.") == 1


def test_an_earlier_result_gives_counters_their_growth(tmp_path: Path) -> None:
    """Three memory errors warn by themselves, and fail when there were two 15 minutes before."""
    ecc = {"mode": 1, "volatile_corrected": 0}
    before = made.with_gpu(made.phb(), 0, ecc=Ecc(volatile_uncorrected=2, **ecc))
    now = made.later(made.with_gpu(made.phb(), 0, ecc=Ecc(volatile_uncorrected=3, **ecc)))
    earlier, later = written(tmp_path / "before.json", before), written(tmp_path / "now.json", now)
    assert judge(later).output.startswith("WARN")
    outcome = judge(later, "--before", earlier)
    assert (outcome.exit_code, outcome.output[:4]) == (1, "FAIL")
    assert "1 uncorrectable memory error since the last run." in outcome.output


def test_an_earlier_result_that_is_none_is_named(tmp_path: Path) -> None:
    """Exit code 2 and the file that is wrong."""
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    outcome = judge(written(tmp_path / "now.json", made.titan()), "--before", bad)
    assert outcome.exit_code == 2
    assert "bad.json" in outcome.output


def test_piped_text_is_plain_and_fits_80_columns(tmp_path: Path) -> None:
    """No escape sequences, no trailing blanks, nothing but the matrix wider than 80 columns."""
    path = written(tmp_path / "result.json", REFUSED)
    done = subprocess.run(
        [sys.executable, "-m", "nodegauge_cli", "judge", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), "FORCE_COLOR": ""},
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    above = lines[: next(n for n, line in enumerate(lines) if "GPU0  GPU1" in line)]
    assert "\x1b" not in done.stdout
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(len(line) for line in above) <= 80


def test_what_a_document_says_is_neither_markup_nor_terminal_control(tmp_path: Path) -> None:
    """A GPU that calls itself [bold] or sends escape sequences is printed harmlessly."""
    evil = made.with_gpu(made.phb(), 0, name="[bold]\x1b]0;owned\x07 GPU")
    evil = msgspec.structs.replace(evil, node="n\x1b[2J")
    output = judge(written(tmp_path / "result.json", evil)).output
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[bold]" in output


def test_json_is_the_whole_judgement(tmp_path: Path) -> None:
    """`--format json` decodes to what the judge said, with the same exit code."""
    outcome = judge(written(tmp_path / "result.json", REFUSED), "--format", "json")
    assert outcome.exit_code == 1
    assert msgspec.convert(json.loads(outcome.output), Judgement) == judge_health(REFUSED)


def test_thresholds_of_a_policy_are_used(tmp_path: Path) -> None:
    """The same document passes by default and warns by a stricter policy, found among other documents."""
    path = written(tmp_path / "result.json", HOT)
    policy = tmp_path / "policy.yaml"
    policy.write_text("kind: Namespace\n---\n" + POLICY)
    assert judge(path).output.startswith("PASS")
    assert judge(path, "--policy", policy).output.startswith("WARN")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (POLICY.replace("hotMargin: 10", "hotMargin: 900"), "spec.thresholds.hotMargin"),
        (POLICY.replace("hotMargin", "hotMargarine"), "no such threshold: hotMargarine"),
        (POLICY.replace("hotMargin: 10", "hotWarn: 95"), "hotFail must be above hotWarn"),
        (POLICY.replace("{hotMargin: 10}", "[1]"), "spec.thresholds must be a mapping"),
        ("kind: Pod\n", "0 documents of kind GPUValidationPolicy"),
        ("a: [", "not readable as YAML"),
    ],
)
def test_a_bad_policy_is_named_with_the_field(tmp_path: Path, policy: str, words: str) -> None:
    """Exit code 2, file and field in the message."""
    path = tmp_path / "policy.yaml"
    path.write_text(policy)
    outcome = judge(written(tmp_path / "result.json", HOT), "--policy", path)
    assert outcome.exit_code == 2
    assert words in outcome.output
    assert "policy.yaml" in outcome.output


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the probe wrote no result"),
        (b"{}", "expected 'nodegauge.dev/probe-result'"),
        (b"\xff\xfe", "not UTF-8 text (byte 0)"),
        (b"x" * 2_000_000, "more than 1048576 bytes"),
        (PREFIX.encode() + b"abc", "cannot be unpacked"),
        (encode(made.titan()).replace(VERSION, b'"version":"2.0"'), "major version 2"),
        (encode(msgspec.structs.replace(made.titan(), probe="pull")), "probe 'pull'"),
        (encode(made.titan()).replace(b'"index":0', b'"index":"zero"'), "gpus"),
    ],
    ids=["empty", "other-json", "binary", "huge", "cut", "version", "probe", "type"],
)
def test_bad_input_is_exit_code_2_with_words(data: bytes, words: str) -> None:
    """Whatever is not a result is refused with the reason and without a traceback."""
    outcome = judge("-", stdin=data)
    assert outcome.exit_code == 2
    assert words in outcome.output
    assert outcome.output.startswith("Error: ")


def test_a_missing_file_is_bad_input() -> None:
    """Exit code 2, as for everything that was typed wrongly."""
    assert judge("/nonexistent/result.json").exit_code == 2


def test_judging_needs_neither_kubernetes_nor_kopf(tmp_path: Path) -> None:
    """With both made impossible to import, `judge` works and `cleanup` names what it lacks."""
    path = written(tmp_path / "result.json", made.titan())
    block = (
        "import sys; sys.modules['kubernetes'] = None; sys.modules['kopf'] = None;"
        "from nodegauge_cli.__main__ import main; main(prog_name='nodegauge')"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", block, *arguments], capture_output=True, text=True, check=False
        )

    judged = run("judge", str(path))
    assert (judged.returncode, judged.stdout[:4]) == (0, "PASS"), judged.stderr
    cleaned = run("cleanup")
    assert cleaned.returncode == 1
    assert "pip install 'nodegauge[operator]'" in cleaned.stderr
    helped = run("--help")
    assert helped.returncode == 0
    assert all(lazy.help in helped.stdout for lazy in SUBCOMMANDS.values())


def test_every_subcommand_can_be_imported() -> None:
    """A name in the list without a function behind it would fail at 3 a.m. only."""
    for name in SUBCOMMANDS:
        outcome = CliRunner().invoke(main, [name, "--help"])
        assert outcome.exit_code == 0, outcome.output


def test_an_unknown_subcommand_is_refused() -> None:
    """Exit code 2, with the name that was typed."""
    outcome = CliRunner().invoke(main, ["jugde"])
    assert outcome.exit_code == 2
    assert "jugde" in outcome.output
