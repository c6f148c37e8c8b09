"""Options and environment of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodegauge_probes import settings
from nodegauge_probes.settings import BadSettings, Format


def parse(*arguments: str, **environment: str) -> settings.Settings:
    return settings.parse(["health", *arguments], environment, probes=["health"])


def test_defaults_need_no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """3 s at 4 Hz, 45 s at most, /sys and /proc, JSON, and no termination log where none exists."""
    monkeypatch.setattr(settings, "DEFAULT_TERMINATION_LOG", tmp_path / "none")
    told = parse()
    assert (told.window, told.hz, told.deadline, told.format) == (3, 4, 45, Format.JSON)
    assert (told.sysfs, told.procfs, told.termination_log) == (Path("/sys"), Path("/proc"), None)
    assert (told.run, told.node) == ("", "")


def test_the_default_termination_log_is_used_where_it_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kubelet mounts the file before the container starts."""
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(settings, "DEFAULT_TERMINATION_LOG", log)
    assert parse().termination_log == log


def test_options_win_over_the_environment() -> None:
    """A root given as an option is the one that is read."""
    told = parse(
        "--sysfs", "/a", NODEGAUGE_SYSFS="/b", NODEGAUGE_PROCFS="/c", NODEGAUGE_RUN="r", NODEGAUGE_NODE="n"
    )
    assert (told.sysfs, told.procfs, told.run, told.node) == (Path("/a"), Path("/c"), "r", "n")


def test_one_error_lists_every_bad_value() -> None:
    """Nobody has to fix one value to hear about the next."""
    with pytest.raises(BadSettings) as error:
        parse("--window", "long", "--hz", "0", "--deadline", "-1", NODEGAUGE_NODE="n" * 254)
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["--window", "--hz", "--deadline", "NODEGAUGE_NODE"]


@pytest.mark.parametrize("value", ["nan", "inf", "1e9", ""])
def test_odd_numbers_are_refused(value: str) -> None:
    """Not a number and without end are no lengths of time."""
    with pytest.raises(BadSettings, match="--window"):
        parse("--window", value)


def test_a_deadline_must_outlast_the_window() -> None:
    """Else every run would end in `deadline`."""
    with pytest.raises(BadSettings, match="longer than --window"):
        parse("--window", "30", "--deadline", "20")


def test_an_unknown_probe_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    """argparse names the probes that exist and leaves with 2."""
    with pytest.raises(SystemExit) as error:
        settings.parse(["nccl"], {}, probes=["health"])
    assert error.value.code == 2
    assert "health" in capsys.readouterr().err
