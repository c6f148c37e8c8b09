"""Options and environment of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodegauge_probes import settings
from nodegauge_probes.settings import BadSettings, Format


def parse(*arguments: str, probe: str = "health", **environment: str) -> settings.Settings:
    probes = ["health", "nccl", "pull", "load", "watch"]
    return settings.parse([probe, *arguments], environment, probes=probes, engines=["nccl4py", "nccl-tests"])


def test_defaults_need_no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "DEFAULT_TERMINATION_LOG", tmp_path / "none")
    parsed = parse()
    assert (parsed.window, parsed.hz, parsed.deadline, parsed.format) == (3, 4, 45, Format.JSON)
    assert (parsed.sysfs, parsed.procfs, parsed.termination_log) == (Path("/sys"), Path("/proc"), None)
    assert (parsed.run, parsed.node) == ("", "")
    nccl, load = parse(probe="nccl", NCCL_ALGO="Ring"), parse(probe="load")
    assert (nccl.deadline, nccl.budget, nccl.limits, nccl.engine) == (810, 60, (None, 45, 10), "nccl4py")
    assert (nccl.nccl_variables, nccl.child, nccl.expected, nccl.shared) == ({}, "", 0, "")
    assert (load.seconds, load.deadline, load.stop_below) == (30, 150, 3)
    assert parse("--seconds", "300", probe="load").deadline == 420, "a longer load has a later one"


def test_the_default_termination_log_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kubelet mounts the file before the container starts."""
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(settings, "DEFAULT_TERMINATION_LOG", log)
    assert parse().termination_log == log


def test_options_win_over_the_environment() -> None:
    parsed = parse(
        "--sysfs", "/a", NODEGAUGE_SYSFS="/b", NODEGAUGE_PROCFS="/c", NODEGAUGE_RUN="r", NODEGAUGE_NODE="n"
    )
    assert (parsed.sysfs, parsed.procfs, parsed.run, parsed.node) == (Path("/a"), Path("/c"), "r", "n")


def test_an_unknown_probe_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        parse(probe="nvlink")
    assert error.value.code == 2
    assert "health" in capsys.readouterr().err


def test_the_benchmark_is_told_by_options_and_environment() -> None:
    options = ("--environment", '{"NCCL_ALGO": "Ring"}', "--limits", "3,2,1.5")
    pod = {"GPUS": "8", "SHARED": "time-slicing", "NCCL_CHILD": "/opt/child", "NCCL_LIMITS": "9,9,9"}
    parsed = parse(*options, probe="nccl", **{f"NODEGAUGE_{name}": value for name, value in pod.items()})
    assert (parsed.nccl_variables, parsed.limits) == ({"NCCL_ALGO": "Ring"}, (3, 2, 1.5))
    assert (parsed.expected, parsed.shared, parsed.child) == (8, "time-slicing", "/opt/child")
    assert parse(probe="nccl", NODEGAUGE_NCCL_LIMITS="9,8,7").limits == (9, 8, 7)
    assert parse("--limits", "auto,8,7", "--deadline", "3240", probe="nccl").limits == (None, 8, 7)


REFUSED: list[tuple[str, list[str], dict[str, str], list[str]]] = [
    (
        "health",
        ["--window", "long", "--hz", "0", "--deadline", "-1"],
        {"NODE": "n" * 254},
        ["--window", "--hz", "--deadline", "NODEGAUGE_NODE"],
    ),
    *(("health", ["--window", value], {}, ["--window"]) for value in ("nan", "inf", "1e9", "")),
    ("health", ["--window", "30", "--deadline", "20"], {}, ["--deadline"]),
    (
        "nccl",
        ["--limits", "9,9", "--budget", "0"],
        {"GPUS": "all", "NCCL_CHILD": "child"},
        ["--budget", "--limits", "NODEGAUGE_GPUS", "NODEGAUGE_NCCL_CHILD"],
    ),
    *(
        ("nccl", ["--environment", variables], {}, ["--environment"])
        for variables in (
            *("[]", "{", '{"LD_PRELOAD": "/evil.so"}', '{"NODEGAUGE_PROTOCOL_FD": "1"}', '{"NCCL_ALGO": 1}'),
            *('{"NCCL_ALGO": "a\\u0000b"}', '{"nccl_algo": "Ring"}'),
        )
    ),
    ("load", ["--seconds", "0"], {}, ["--seconds"]),
    ("load", ["--seconds", "1e5"], {}, ["--deadline", "--seconds"]),
    ("load", ["--hz", "1.5", "--stop-below", "-1"], {}, ["--hz", "--stop-below"]),
    ("watch", ["--interval", "0", "--confirm", "1,x"], {}, ["--confirm", "--interval"]),
]
"""Probe, options, variables, and the names that the one error lists.  A policy tunes NCCL; it is no way to
load a library into the benchmark."""


@pytest.mark.parametrize(("probe", "options", "variables", "named"), REFUSED)
def test_one_error_names_every_bad_value(
    probe: str, options: list[str], variables: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(BadSettings) as error:
        parse(*options, probe=probe, **{f"NODEGAUGE_{name}": value for name, value in variables.items()})
    lines = str(error.value).splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == sorted(named)
