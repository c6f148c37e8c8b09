"""Options and environment of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodegauge_probes import settings
from nodegauge_probes.settings import BadSettings, Format


def parse(*arguments: str, **environment: str) -> settings.Settings:
    return parse_probe("health", *arguments, **environment)


def parse_probe(probe: str, *arguments: str, **environment: str) -> settings.Settings:
    return settings.parse(
        [probe, *arguments], environment, probes=["health", "nccl", "pull"], engines=["nccl4py", "nccl-tests"]
    )


def test_defaults_need_no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "DEFAULT_TERMINATION_LOG", tmp_path / "none")
    parsed = parse()
    assert (parsed.window, parsed.hz, parsed.deadline, parsed.format) == (3, 4, 45, Format.JSON)
    assert (parsed.sysfs, parsed.procfs, parsed.termination_log) == (Path("/sys"), Path("/proc"), None)
    assert (parsed.run, parsed.node) == ("", "")


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


def test_one_error_lists_every_bad_value() -> None:
    with pytest.raises(BadSettings) as error:
        parse("--window", "long", "--hz", "0", "--deadline", "-1", NODEGAUGE_NODE="n" * 254)
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["--window", "--hz", "--deadline", "NODEGAUGE_NODE"]


@pytest.mark.parametrize("value", ["nan", "inf", "1e9", ""])
def test_odd_numbers_are_refused(value: str) -> None:
    with pytest.raises(BadSettings, match="--window"):
        parse("--window", value)


def test_a_deadline_must_outlast_the_window() -> None:
    with pytest.raises(BadSettings, match="longer than --window"):
        parse("--window", "30", "--deadline", "20")


def test_an_unknown_probe_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        parse_probe("nvlink")
    assert error.value.code == 2
    assert "health" in capsys.readouterr().err


def test_the_benchmark_has_its_own_defaults() -> None:
    parsed = parse_probe("nccl", NCCL_ALGO="Ring")
    assert (parsed.deadline, parsed.budget, parsed.limits) == (810, 60, (None, 45, 10))
    assert (parsed.engine, parsed.nccl_variables, parsed.child) == ("nccl4py", {}, "")
    assert (parsed.expected, parsed.shared) == (0, "")


def test_the_benchmark_is_told_by_options_and_environment() -> None:
    options = ("--environment", '{"NCCL_ALGO": "Ring"}', "--limits", "3,2,1.5")
    pod = {"GPUS": "8", "SHARED": "time-slicing", "NCCL_CHILD": "/opt/child", "NCCL_LIMITS": "9,9,9"}
    parsed = parse_probe("nccl", *options, **{f"NODEGAUGE_{name}": value for name, value in pod.items()})
    assert (parsed.nccl_variables, parsed.limits) == ({"NCCL_ALGO": "Ring"}, (3, 2, 1.5))
    assert (parsed.expected, parsed.shared, parsed.child) == (8, "time-slicing", "/opt/child")
    assert parse_probe("nccl", NODEGAUGE_NCCL_LIMITS="9,8,7").limits == (9, 8, 7)
    assert parse_probe("nccl", "--limits", "auto,8,7", "--deadline", "3240").limits == (None, 8, 7)


@pytest.mark.parametrize(
    "variables",
    [
        *("[]", "{", '{"LD_PRELOAD": "/evil.so"}', '{"NODEGAUGE_PROTOCOL_FD": "1"}', '{"NCCL_ALGO": 1}'),
        *('{"NCCL_ALGO": "a\\u0000b"}', '{"nccl_algo": "Ring"}'),
    ],
)
def test_only_nccl_s_own_variables_are_taken(variables: str) -> None:
    """A policy tunes NCCL; it is no way to load a library into the benchmark."""
    with pytest.raises(BadSettings, match="--environment"):
        parse_probe("nccl", "--environment", variables)


def test_every_bad_value_of_the_benchmark_is_named() -> None:
    with pytest.raises(BadSettings) as error:
        parse_probe(
            "nccl", "--limits", "9,9", "--budget", "0", NODEGAUGE_GPUS="all", NODEGAUGE_NCCL_CHILD="child"
        )
    lines = str(error.value).splitlines()
    named = [line.partition(":")[0] for line in lines]
    assert sorted(named) == ["--budget", "--limits", "NODEGAUGE_GPUS", "NODEGAUGE_NCCL_CHILD"]


def parse_load(*arguments: str) -> settings.Settings:
    return settings.parse(["load", *arguments], {}, probes=["load"], engines=["nccl4py"])


def test_a_longer_load_has_a_later_deadline() -> None:
    assert (parse_load().seconds, parse_load().deadline, parse_load().stop_below) == (30, 150, 3)
    assert parse_load("--seconds", "300").deadline == 420
    assert parse_load("--seconds", "300", "--deadline", "60").deadline == 60


@pytest.mark.parametrize(
    ("option", "value"), [("--seconds", "0"), ("--seconds", "1e5"), ("--hz", "1.5"), ("--stop-below", "-1")]
)
def test_loads_that_nobody_wants_are_refused(option: str, value: str) -> None:
    with pytest.raises(BadSettings, match=option):
        parse_load(option, value)
