"""Settings of a run from options and environment: parsed once, with one error for all invalid values.

The environment describes the pod (run id, node, roots, termination log), options how to measure.  An option
overrides `NODEGAUGE_*`, which overrides a default.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from nodegauge_contract.access import ACCESS_VARIABLE
from nodegauge_probes import watch_options
from nodegauge_probes.load import storage_options
from nodegauge_probes.nccl.plan import BUDGET_S, ENGINES_PER_GPU, Processes
from nodegauge_probes.nccl.protocol import CHILD_VARIABLE

DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
DEADLINES = {"health": "45", "watch": "60", "nccl": "810", "pull": "150", "load": "150", "feed": "60"}
"""Seconds by probe: the NCCL probe's pod has 15 minutes; those of load and feed grow with --seconds."""
LONGEST_WINDOW_S = 600.0
"""As long as a policy may ask for."""
LOAD_S = 30.0
LEAST_LOAD_HZ = 2.0
AUTO = "auto"
LIMITS = f"{AUTO},45,10"
MAX_VARIABLES, MAX_VALUE = 64, 1024
EPILOG = """environment: NODEGAUGE_RUN and NODEGAUGE_NODE (echoed in the result), NODEGAUGE_SYSFS,
NODEGAUGE_PROCFS, NODEGAUGE_TERMINATION_LOG (default: /dev/termination-log if it exists).  nccl, pull and
load: NODEGAUGE_GPUS (how many GPUs the node should have), NODEGAUGE_SHARED (how its GPUs are shared; if
set, nothing is measured).  In a pod: NODEGAUGE_DRIVER_ACCESS (DRA or HostDriver if no runtime brings the
driver in, for advice).  nccl and pull: NODEGAUGE_NCCL_CHILD (a program to run instead of the engine),
NODEGAUGE_NCCL_LIMITS (like --limits).  In a pod: NODEGAUGE_TOKEN_FOLDER (token and ca.crt, with which the
node's NodeReading is written).  exit codes: 0 a result was written, with or without a problem; 1 no result
could be written; 2 invalid arguments."""


_VARIABLE = re.compile(r"NCCL_[A-Z0-9_]{1,100}")


class Format(StrEnum):
    JSON = "json"
    TABLE = "table"


class BadSettings(Exception):
    """Every invalid option or variable, one per line."""


class Settings(Struct, frozen=True, kw_only=True):
    """One run.  Settings of other probes have their defaults."""

    probe: str
    """Name of the probe."""
    format: Format
    """Form of the output on stdout."""
    progress: bool
    """Whether to say on stderr what the run does."""
    run: str
    """Id of the run, echoed in the result."""
    node: str
    """Name of the node, echoed in the result."""
    access: str
    """How the driver comes into the container (`Access`); empty if nobody said."""
    sysfs: Path
    """Root to use as /sys."""
    procfs: Path
    """Root to use as /proc."""
    kernel_log: Path | None
    """The kernel's log, for the probes health and watch; None to leave it unread."""
    termination_log: Path | None
    """File for the container's last words; None without one."""
    window: float
    """Seconds of sampling, 0 to 600."""
    slowed_window: float
    """Seconds of sampling while a GPU is slowed down, 0 to 600."""
    hz: float
    """Samples per second, 0.1 to 50; under load at least 2."""
    deadline: float
    """Seconds of the whole run, 1 to 3600; of the watch probe, of one reading."""
    engine: str
    """Engine of the NCCL probe."""
    child: str
    """Absolute path of a program to run instead of the engine; or empty."""
    processes: Processes
    """How many processes drive the GPUs in an NCCL run."""
    expected: int
    """GPUs that the node should have, up to 1024; 0 if unknown."""
    shared: str
    """How the GPUs are shared; empty if they are not."""
    nccl_variables: dict[str, str]
    """The policy's NCCL_* variables."""
    limits: tuple[float | None, float, float]
    """Seconds for starting (None: by configuration and GPUs), measuring and ending a child, 0.1 to 600."""
    budget: float
    """Seconds for all arms of an NCCL run together, 1 to 600."""
    seconds: float
    """Seconds of load, or of the window of feed, 1 to 900."""
    dcgm: str
    """Address of a dcgm-exporter, for feed and watch; or empty."""
    control_groups: Path | None
    """The host's control groups, for feed and watch; None if the container does not see them."""
    stop_below: int
    """°C below the vendor's slowdown at which the load ends, 0 to 50."""
    storage: storage_options.Options | None
    """What the load probe also reads; None for nothing."""
    watch: watch_options.Options
    """Options of the watch probe."""


def parse(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    probes: Sequence[str],
    engines: Sequence[str],
) -> Settings:
    """The settings of one run; raises `BadSettings`, and SystemExit for --help or an unknown option."""
    options = _parser(probes, engines).parse_args(arguments)
    bad: list[str] = []
    window = _number(options.window, "--window", bad, low=0, high=LONGEST_WINDOW_S)
    hz = _number(options.hz, "--hz", bad, low=0.1, high=50)
    seconds = _number(options.seconds, "--seconds", bad, low=1, high=900)
    stop_below = _number(options.stop_below, "--stop-below", bad, low=0, high=50)
    usual = float(DEADLINES[options.probe])
    if options.probe in ("load", "feed"):
        usual += seconds - LOAD_S
    if options.probe == "load" and hz < LEAST_LOAD_HZ:
        bad.append(f"--hz: {hz:g} is too slow under load; choose at least {LEAST_LOAD_HZ:g}")
    deadline = _number(options.deadline or f"{usual:g}", "--deadline", bad, low=1, high=3600)
    slowed = _number(options.slowed_window, "--slowed-window", bad, low=0, high=LONGEST_WINDOW_S)
    for name, sampled in (("window", window), ("slowed-window", slowed)):
        if not bad and options.probe in ("health", "watch") and deadline <= sampled:
            bad.append(f"--deadline: {deadline:g} s must be longer than --{name}, {sampled:g} s")
    limits = _limits(options.limits or environment.get("NODEGAUGE_NCCL_LIMITS") or LIMITS, bad)
    budget = _number(options.budget, "--budget", bad, low=1, high=600)
    variables = _variables(options.environment, bad)
    expected = _number(environment.get("NODEGAUGE_GPUS") or "0", "NODEGAUGE_GPUS", bad, low=0, high=1024)
    _check_environment(environment, bad)
    if options.dcgm and not re.fullmatch(r"http://[\w.:\[\]-]{1,200}(/[\w./-]{0,200})?", options.dcgm):
        bad.append(f"--dcgm: {options.dcgm!r} is not an address such as http://127.0.0.1:9400/metrics")
    watch = watch_options.options_of(options, number=_number, bad=bad)
    storage = storage_options.options_of(options, number=_number, bad=bad)
    if options.processes == Processes.PER_GPU and options.engine not in ENGINES_PER_GPU:
        bad.append(f"--processes: {options.engine} drives all GPUs with one process; choose auto or one")
    if bad:
        raise BadSettings("\n".join(bad))
    return Settings(
        probe=options.probe,
        format=Format(options.format),
        progress=options.progress,
        run=environment.get("NODEGAUGE_RUN", ""),
        node=environment.get("NODEGAUGE_NODE", ""),
        access=environment.get(ACCESS_VARIABLE, ""),
        sysfs=Path(options.sysfs or environment.get("NODEGAUGE_SYSFS") or "/sys"),
        procfs=Path(options.procfs or environment.get("NODEGAUGE_PROCFS") or "/proc"),
        kernel_log=Path(options.kernel_log) if options.kernel_log else None,
        termination_log=_termination_log(environment),
        window=window,
        slowed_window=slowed,
        hz=hz,
        deadline=deadline,
        engine=options.engine,
        child=environment.get(CHILD_VARIABLE, ""),
        processes=Processes(options.processes),
        expected=int(expected),
        shared=environment.get("NODEGAUGE_SHARED", ""),
        nccl_variables=variables,
        limits=limits,
        budget=budget,
        seconds=seconds,
        dcgm=options.dcgm,
        control_groups=Path(options.control_groups) if options.control_groups else None,
        stop_below=int(stop_below),
        storage=storage,
        watch=watch,
    )


def _parser(probes: Sequence[str], engines: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nodegauge_probes",
        description="Read one GPU node and print the readings. Verdicts are up to the operator.",
        epilog=EPILOG,
    )
    parser.add_argument("probe", choices=probes, help="which probe to run")
    parser.add_argument(
        "--format", choices=[*Format], default=Format.JSON, help="output on stdout, default json"
    )
    parser.add_argument(
        "--progress", action="store_true", help="say on stderr what the run does, a line at each change"
    )
    parser.add_argument("--sysfs", metavar="ROOT", help="root to use instead of /sys")
    parser.add_argument("--procfs", metavar="ROOT", help="root to use instead of /proc")
    parser.add_argument(
        "--kernel-log",
        metavar="FILE",
        help="also read the kernel's log: a text file of a syslog daemon, or /dev/kmsg (root only)",
    )
    parser.add_argument("--window", metavar="SECONDS", default="3", help="how long to sample, default 3")
    parser.add_argument(
        "--slowed-window",
        metavar="SECONDS",
        default="0",
        help="how long to sample while a GPU is slowed down, default as long as otherwise",
    )
    parser.add_argument("--hz", metavar="N", default="4", help="samples per second, default 4")
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        help=f"stop with the readings so far, default {', '.join(f'{n} {s}' for n, s in DEADLINES.items())}",
    )
    watch_options.add_to(parser)
    parser.add_argument(
        "--control-groups",
        metavar="ROOT",
        help="feed and watch: the host's control groups (/sys/fs/cgroup there), to see quotas of pods",
    )
    parser.add_argument(
        "--dcgm", metavar="URL", default="", help="feed and watch: metrics of a dcgm-exporter on this node"
    )
    parser.add_argument(
        "--seconds",
        metavar="SECONDS",
        default=f"{LOAD_S:g}",
        help=f"of load, or of the window of feed, default {LOAD_S:g}",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--stop-below",
        metavar="DEGREES",
        default="3",
        help="end the load so many °C below the vendor's slowdown, default 3",
    )
    storage_options.add_to(parser)
    nccl = parser.add_argument_group("nccl and pull")
    nccl.add_argument("--engine", choices=engines, default=engines[0], help=f"default {engines[0]}")
    nccl.add_argument(
        "--processes",
        choices=[*Processes],
        default=Processes.AUTO,
        help="processes that drive the GPUs, default auto: one per GPU with nccl4py, else one for all",
    )
    nccl.add_argument("--environment", metavar="JSON", default="{}", help="NCCL_* variables for all arms")
    nccl.add_argument(
        "--budget",
        metavar="SECONDS",
        default=f"{BUDGET_S:g}",
        help=f"for all arms together, default {BUDGET_S:g}",
    )
    nccl.add_argument(
        "--limits",
        metavar="S,S,S",
        help=f"limits for starting, measuring and ending a child, default {LIMITS}; "
        f"{AUTO}: by configuration and number of GPUs",
    )
    return parser


def _check_environment(environment: Mapping[str, str], bad: list[str]) -> None:
    child = environment.get(CHILD_VARIABLE, "")
    if child and not Path(child).is_absolute():
        bad.append(f"{CHILD_VARIABLE}: {child!r} is not an absolute path")
    for name, limit in (("NODEGAUGE_RUN", 128), ("NODEGAUGE_NODE", 253), ("NODEGAUGE_SHARED", 128)):
        if len(environment.get(name, "")) > limit:
            bad.append(f"{name}: longer than {limit} characters; shorten it")


def _number(text: str, name: str, bad: list[str], *, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        bad.append(f"{name}: {text!r} is not a number from {low:g} to {high:g}")
    return value


def _limits(text: str, bad: list[str]) -> tuple[float | None, float, float]:
    """Three numbers of seconds; the first may be `auto`."""
    parts = text.split(",")
    if len(parts) != 3:
        bad.append(f"--limits: {text!r} is not three numbers of seconds: starting, measuring, ending")
        return 0.0, 0.0, 0.0
    first, *others = parts
    startup = None if first == AUTO else _number(first, "--limits", bad, low=0.1, high=600)
    measure, teardown = (_number(part, "--limits", bad, low=0.1, high=600) for part in others)
    return startup, measure, teardown


def _variables(text: str, bad: list[str]) -> dict[str, str]:
    """NCCL's variables from JSON.  Others are refused: the loader's and ours must not be set here."""
    try:
        variables = json.loads(text)
    except ValueError as error:
        bad.append(f"--environment: not JSON: {error}")
        return {}
    if not isinstance(variables, dict) or len(variables) > MAX_VARIABLES:
        bad.append(f"--environment: not an object of at most {MAX_VARIABLES} variables")
        return {}
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            bad.append(f"--environment: {name!r} is not an NCCL variable (NCCL_...)")
        elif not isinstance(value, str) or len(value) > MAX_VALUE or "\0" in value:
            bad.append(f"--environment: {name} is not a string of at most {MAX_VALUE} characters")
    return variables


def _termination_log(environment: Mapping[str, str]) -> Path | None:
    named = environment.get("NODEGAUGE_TERMINATION_LOG")
    if named:
        return Path(named)
    return DEFAULT_TERMINATION_LOG if DEFAULT_TERMINATION_LOG.exists() else None
