"""What a run was told: options and environment, parsed once, every bad value named in one error.

The environment says where the pod runs (run id, node, roots, termination log), options say how to measure.
`NODEGAUGE_*` wins over a default and loses against an option.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
EPILOG = """environment: NODEGAUGE_RUN, NODEGAUGE_NODE (echoed in the result), NODEGAUGE_SYSFS,
NODEGAUGE_PROCFS, NODEGAUGE_TERMINATION_LOG (default /dev/termination-log; written only where it exists or
is named here).  exit codes: 0 a result was written (also one that names a problem), 1 nothing could be
written, 2 wrong arguments."""


class Format(StrEnum):
    JSON = "json"
    TABLE = "table"


class BadSettings(Exception):
    """Every option or variable that cannot be used, one per line."""


class Settings(Struct, frozen=True, kw_only=True):
    """One run: seconds for `window` and `deadline`, samples per second for `hz`."""

    probe: str
    format: Format
    run: str
    node: str
    sysfs: Path
    procfs: Path
    termination_log: Path | None
    window: float
    hz: float
    deadline: float


def parse(arguments: Sequence[str], environment: Mapping[str, str], *, probes: Sequence[str]) -> Settings:
    """The settings of one run; raises `BadSettings`, and SystemExit for --help or an unknown option."""
    told = _parser(probes).parse_args(arguments)
    bad: list[str] = []
    window = _number(told.window, "--window", bad, low=0, high=60)
    hz = _number(told.hz, "--hz", bad, low=0.1, high=50)
    deadline = _number(told.deadline, "--deadline", bad, low=1, high=600)
    if not bad and deadline <= window:
        bad.append(f"--deadline: {deadline:g} s must be longer than --window, {window:g} s")
    for name, limit in (("NODEGAUGE_RUN", 128), ("NODEGAUGE_NODE", 253)):
        if len(environment.get(name, "")) > limit:
            bad.append(f"{name}: longer than {limit} characters")
    if bad:
        raise BadSettings("\n".join(bad))
    return Settings(
        probe=told.probe,
        format=Format(told.format),
        run=environment.get("NODEGAUGE_RUN", ""),
        node=environment.get("NODEGAUGE_NODE", ""),
        sysfs=Path(told.sysfs or environment.get("NODEGAUGE_SYSFS") or "/sys"),
        procfs=Path(told.procfs or environment.get("NODEGAUGE_PROCFS") or "/proc"),
        termination_log=_termination_log(environment),
        window=window,
        hz=hz,
        deadline=deadline,
    )


def _parser(probes: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nodegauge_probes",
        description="Read one GPU node and print what was read; judges nothing.",
        epilog=EPILOG,
    )
    parser.add_argument("probe", choices=probes, help="what to measure")
    parser.add_argument("--format", choices=[*Format], default=Format.JSON, help="default json")
    parser.add_argument("--sysfs", metavar="ROOT", help="another root than /sys")
    parser.add_argument("--procfs", metavar="ROOT", help="another root than /proc")
    parser.add_argument("--window", metavar="SECONDS", default="3", help="how long to sample, default 3")
    parser.add_argument("--hz", metavar="N", default="4", help="samples per second, default 4")
    parser.add_argument(
        "--deadline", metavar="SECONDS", default="45", help="end with what was read, default 45"
    )
    return parser


def _number(text: str, name: str, bad: list[str], *, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        bad.append(f"{name}: {text!r} is not a number from {low:g} to {high:g}")
    return value


def _termination_log(environment: Mapping[str, str]) -> Path | None:
    named = environment.get("NODEGAUGE_TERMINATION_LOG")
    if named:
        return Path(named)
    return DEFAULT_TERMINATION_LOG if DEFAULT_TERMINATION_LOG.exists() else None
