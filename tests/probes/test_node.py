"""`nodegauge node`: probe and judge in one command, on simulated machines."""

from __future__ import annotations

import io
import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nodegauge_cli.__main__ import main
from nodegauge_cli.node import command
from nodegauge_cli.node.progress import Progress
from nodegauge_contract import ArmName
from nodegauge_contract.nccl import Phase
from nodegauge_probes.progress import doing
from nodegauge_probes.result_builder import ArmBuilder, GpuBuilder, NcclBuilder, ResultBuilder
from nodegauge_probes.runner import Call, CallWatch
from support.nccl_probe import NcclOn
from support.probing import QUICK, On, Probe
from testbed import forkserver
from testbed.wait import wait_for

TITAN = "titan-rtx-nv2"


def node(machine: Probe, *options: str | Path) -> Result:
    arguments = ["node", *map(str, options), "--", *QUICK]
    return CliRunner().invoke(main, arguments, env=dict(machine.env()))


def test_a_healthy_machine_passes_and_the_next_run_knows_its_gpus(probe: On, tmp_path: Path) -> None:
    machine, kept = probe(TITAN), tmp_path / "history.json"
    first = node(machine, "--history", kept)
    assert (first.exit_code, first.stdout[:4], first.stderr) == (0, "PASS", "")
    assert "node-1" not in first.stdout
    serial = json.loads(kept.read_text())["kept"]["gpus"][1]["serial"]
    machine.hardware.fault("gpu-lost", gpu=1, nvml="absent", pci="gone")
    for _ in range(2):
        lost = node(machine, "--history", kept, "-o", "json", "--html", tmp_path / "node.html")
        judgement = json.loads(lost.stdout)
        assert (lost.exit_code, judgement["findings"][0]["code"]) == (1, "gpu-lost")
        assert judgement["findings"][0]["gpus"][0]["serial"] == serial
    assert "kubectl" not in json.dumps(judgement["findings"])
    assert f'"serial":"{serial}"' in (tmp_path / "node.html").read_text()


def test_what_cannot_be_read_is_unknown_and_nothing_else_is_run(probe: On, tmp_path: Path) -> None:
    machine, page = probe(TITAN), tmp_path / "node.html"
    machine.hardware.fault("driver-mismatch")
    asked = node(machine, "--probe", "nccl", "--probe", "health", "--html", page, "-o", "json")
    health, nccl = json.loads(asked.stdout)["judgements"]
    assert (asked.exit_code, health["findings"][0]["code"]) == (3, "driver-mismatch")
    assert (nccl["title"], nccl["error"][-7:]) == ("nccl", "not run")
    assert '"readAt":' not in page.read_text()
    for name in ("nccl", "load"):
        alone = node(machine, "--probe", name)
        assert (alone.exit_code, "Reload the nvidia modules" in " ".join(alone.stdout.split())) == (3, True)
        assert "is noticed only with --history FILE" in alone.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--history", "{folder}/other.json"), "would overwrite it"),
        (("--history", "{folder}/no/history.json"), "no such folder"),
        (("--probe", "load", "--power-inventory", "{folder}/other.json"), "for the health probe"),
        (("--", "--hz", "0"), "--hz: '0' is not a number"),
    ],
)
def test_what_is_refused_says_why_before_it_measures(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    outcome = CliRunner().invoke(main, ["node", *(each.format(folder=tmp_path) for each in options)])
    assert (outcome.exit_code, message in " ".join(outcome.stderr.split())) == (2, True), outcome.output
    assert (outcome.stdout, other.read_text()) == ("", "{}")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda module: None if module == "pynvml" else module)
    outcome = CliRunner().invoke(main, ["node"])
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "nvidia-ml-py" in outcome.stderr
    assert "pip install '.[probes,cli]'" in outcome.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing_behind(nccl_on: NcclOn, number: signal.Signals) -> None:
    run = nccl_on(TITAN).child("engine()\nphases('init')\ntime.sleep(600)")
    kept = run.folder / "history.json"
    longest = ["--", "--budget", "600", "--limits", "600,600,600"]  # the probe ends by itself after the test
    options = ["--probe", "nccl", "--history", str(kept), *longest]
    program = [sys.executable, "-m", "nodegauge_cli", "node", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = forkserver.popen(program, env=dict(run.env()), **pipes)
    wait_for(lambda: len(run.left_behind()) > 1, what="the child of the probe")
    process.send_signal(number)
    output, message = process.communicate()
    stopped = number is not signal.SIGKILL
    assert (process.returncode, output) == (128 + number if stopped else -number, "")
    assert ("nothing is judged" in message, kept.exists()) == (stopped, False)
    run.wait_until_alone()


@pytest.mark.parametrize(
    ("terminal", "term", "shown"), [(True, "xterm", 3), (True, "dumb", 0), (False, "", 0)]
)
def test_progress_is_one_line_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str, shown: int
) -> None:
    screen = io.StringIO()
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    progress = Progress(screen, clock=itertools.count(0.0).__next__)
    progress.begin("nccl")
    progress.show("x" * 200)
    progress.clear()
    _, *lines = screen.getvalue().split("\r\x1b[K") if shown else ("",)
    assert lines == ["nccl      1s  starts", f"nccl      2s  {'x' * 65}", ""][:shown]


def arm(phase: str, cells: int = 0) -> ArmBuilder:
    return ArmBuilder(ArmName.DEFAULT, phase=phase, cells=[None] * cells)


@pytest.mark.parametrize(
    ("members", "call", "message"),
    [
        ({}, None, "opens the driver"),
        ({}, "nvmlInit", "waits for the driver: nvmlInit"),
        ({"gpus": [GpuBuilder(0), GpuBuilder(1)]}, None, "reads 2 GPUs"),
        (
            {"nccl": [arm(Phase.INIT), arm(Phase.MEASURE, 2), arm("")]},
            None,
            "default (2 of 3) measures, 2 results",
        ),
    ],
)
def test_a_run_says_what_it_does_and_waits_for(
    members: dict[str, object], call: str | None, message: str
) -> None:
    result, watch = ResultBuilder(probe="", run="", node=""), CallWatch(deadline=60, clock=lambda: 100.0)
    result.gpus = members.get("gpus", [])
    if "nccl" in members:
        result.nccl = NcclBuilder(engine="", expected=2, shm_bytes=0, arms=members["nccl"])
    watch.now = Call(call, "", 98.0) if call else Call("nvmlDeviceGetName", "GPU 0", 99.9)
    assert doing(result, watch) == message
