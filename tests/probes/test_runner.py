"""A run of any probe: options, last words by real processes, what it leaves and costs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nodegauge_probes
from nodegauge_contract import Problem, Result, decode
from nodegauge_probes import settings
from nodegauge_probes.runner import CallWatch
from nodegauge_probes.settings import BadSettings, Format
from support.probing import On, last_message, problem_of
from testbed import forkserver
from testbed.wait import DEADLINE_SECONDS, wait_for

SCRIPT = """
import sys, time
from pathlib import Path
from nodegauge_probes import cli
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes import runner
from nodegauge_probes.settings import Format

def measure(result, watch):
    result.host.set(boot_id="read before")
    {prepare}
    print("measuring", file=sys.stderr, flush=True)
    {body}

write = cli.Output(form=Format.JSON, termination_log=Path(sys.argv[1]), client=None).write
runner.CALL_LIMIT_S = 0.5
run = runner.Run(result=ResultBuilder(probe="health", run="r1", node="n1"), deadline={deadline}, write=write)
sys.exit(run.run(measure))
"""


class Started:
    def __init__(self, folder: Path, *, body: str, prepare: str, deadline: float) -> None:
        self.log = folder / "termination-log"
        script = SCRIPT.format(body=body, prepare=prepare, deadline=deadline)
        self.process = forkserver.popen(
            [sys.executable, "-c", script, str(self.log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def wait_until_measuring(self) -> None:
        assert self.process.stderr.readline() == b"measuring\n"

    def result(self) -> Result:
        """The document on standard output, once it is known that the termination log names its problem."""
        out, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 0
        result = decode(out.decode())
        assert last_message(self.log) == problem_of(result)
        return result


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Started]]:
    begun: list[Started] = []

    def starter(*, body: str, prepare: str = "pass", deadline: float = 60) -> Started:
        begun.append(Started(tmp_path, body=body, prepare=prepare, deadline=deadline))
        return begun[-1]

    yield starter  # type: ignore[misc]
    for run in begun:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()


def test_a_crash_has_type_and_place(start: type[Started]) -> None:
    result = start(body="{}['missing']").result()
    assert result.problem.kind == "crashed"
    assert "KeyError" in result.problem.message
    assert "measure" in result.problem.call


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ("result.gpus.append(None)", ""),
        *(
            (f"result.system.set(driver={reading})", "output")
            for reading in ("chr(0xd800)", "2 ** 70", "'x' * 200")
        ),
    ],
    ids=["it cannot be built", "no text", "too large a number", "too long a text"],
)
def test_a_document_that_cannot_be_written_says_so(start: type[Started], body: str, call: str) -> None:
    run = start(body=body)
    out, _ = run.process.communicate(timeout=DEADLINE_SECONDS)
    result = decode(out.decode())
    assert (result.problem.kind, result.run) == ("crashed", "r1")
    assert not call or result.problem.call == call


class HeldClock:
    """A clock that the test moves; `jumps` are added right after that many more readings."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.jumps: dict[int, float] = {}
        self.readings = 0

    def __call__(self) -> float:
        reading, self.readings = self.now, self.readings + 1
        self.now += self.jumps.pop(self.readings, 0.0)
        return reading


class Looks:
    """A watch with a held clock; limits: 10 s for a call, 20 for one that opens, 30 for the probe."""

    def __init__(self) -> None:
        self.clock = HeldClock()
        self.watch = CallWatch(deadline=30, clock=self.clock)

    def until(self, seconds: float) -> Problem | None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += self.watch.tick
            if (problem := self.watch.look()) is not None:
                return problem
        return None


@pytest.mark.parametrize(("call", "limit"), [("nvmlDeviceGetUUID", 10), ("nvmlInit", 20)])
def test_a_call_is_hung_at_its_limit(call: str, limit: float) -> None:
    looks = Looks()
    looks.watch.enter(call, "")
    assert looks.until(limit - 1) is None
    problem = looks.until(2)
    assert (problem.kind, problem.call) == ("call-hung", call)


@pytest.mark.parametrize(
    ("noted_late", "calm", "judged_late", "steps"),
    [
        pytest.param(0, 0, 0, [25], id="before the first look"),
        pytest.param(25, 0, 0, [0], id="before the call is noted"),
        pytest.param(0, 1, 0, [25], id="between two looks"),
        pytest.param(0, 0, 25, [0, 0], id="between waking and judging"),
        pytest.param(0, 0, 0, [12, 12], id="twice in a row"),
        pytest.param(0, 0, 0, [4.5] * 6, id="again and again for less than half of the limit"),
    ],
)
def test_a_call_is_not_blamed_for_the_time_in_which_the_process_stood_still(
    noted_late: float, calm: float, judged_late: float, steps: list[float]
) -> None:
    """Wherever that meets it; one that hangs afterwards is named none the less."""
    looks = Looks()
    looks.clock.jumps[looks.clock.readings + 1] = noted_late
    looks.watch.enter("nvmlDeviceGetUUID", "")
    assert looks.until(calm) is None
    looks.clock.jumps[looks.clock.readings + 1] = judged_late
    for seconds in steps:
        looks.clock.now += seconds
        assert looks.watch.look() is None
    looks.watch.begin()
    assert looks.until(3) is None
    problem = looks.until(10)
    assert problem.kind == "call-hung"


def test_the_probe_is_late_at_its_deadline() -> None:
    looks = Looks()

    def problem_within(seconds: float) -> Problem | None:
        for _ in range(round(seconds)):
            looks.watch.enter("nvmlDeviceGetName", "")
            if (problem := looks.until(1)) is not None:
                return problem
        return None

    assert problem_within(29) is None
    looks.watch.begin()
    assert problem_within(29) is None
    problem = problem_within(2)
    assert (problem.kind, problem.call) == ("deadline", "nvmlDeviceGetName")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_at_once_with_last_words(start: type[Started], number: signal.Signals) -> None:
    """After what is to be done before the end, of which one part may fail."""
    run = start(
        prepare="watch.before_exit += [lambda: 1 / 0, lambda: result.system.set(driver='all gone')]",
        body="watch.enter('nvmlInit', ''); time.sleep(600)",
    )
    run.wait_until_measuring()
    os.kill(run.process.pid, number)
    result = run.result()
    assert result.problem.kind == "terminated"
    assert number.name in result.problem.message
    assert (result.host.boot_id, result.system.driver) == ("read before", "all gone")


def test_nothing_written_is_exit_code_one(tmp_path: Path) -> None:
    body = "result.problem = runner.crash(ValueError())"
    script = SCRIPT.format(body=body, prepare="pass", deadline=30)
    command = [sys.executable, "-c", script, str(tmp_path)]
    with Path("/dev/full").open("wb") as full:
        run = forkserver.run(command, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_SECONDS)
    assert run.returncode == 1
    assert b"termination log" in run.stderr


SOURCES = Path(nodegauge_probes.__file__).parent.parent
STUCK = """
import pathlib, time
pathlib.Path({mark!r}).touch()
time.sleep(600)
"""


def test_a_probe_that_is_told_to_go_while_it_starts_goes_at_once(tmp_path: Path) -> None:
    """The first process of a container has no default answer to SIGTERM."""
    mark = tmp_path / "importing"
    (tmp_path / "msgspec.py").write_text(STUCK.format(mark=str(mark)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"}
    with subprocess.Popen(
        [sys.executable, "-m", "nodegauge_probes", "health"], env=environment, stderr=subprocess.PIPE
    ) as process:
        wait_for(mark.exists, what="the probe comes to its imports")
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=DEADLINE_SECONDS) == 128 + signal.SIGTERM
        finally:
            process.kill()


AUDIT = """
import os, runpy, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system",
    "socket.__new__", "socket.connect", "socket.bind",
}
def hook(event, arguments):
    if event == "open" and arguments[2] & WRITES:
        os.write(2, f"open {os.fsdecode(arguments[0])}\\n".encode())
    elif event in CHANGES:
        os.write(2, f"{event} {arguments}\\n".encode())
sys.dont_write_bytecode = True
sys.addaudithook(hook)
sys.argv = ["nodegauge_probes", *sys.argv[1:]]
runpy.run_module("nodegauge_probes", run_name="__main__")
"""


@pytest.mark.parametrize("form", ["json", "table"])
def test_nothing_is_written_but_why_there_is_no_reading(probe: On, form: str) -> None:
    """No file, process or socket, and of a problem the termination log, by the interpreter's audit events."""
    on = probe("h100-sxm-8")
    run = on.python(AUDIT, "health", "--window", "0", "--format", form)
    assert (run.returncode, run.stderr) == (0, "")
    on.environment["LD_LIBRARY_PATH"] = str(on.folder)
    run = on.python(AUDIT, "health", "--window", "0", "--format", form)
    assert (run.returncode, run.stderr.splitlines()) == (0, [f"open {on.termination_log}"])
    assert last_message(on.termination_log).startswith("library-not-found: ")


def test_a_driver_that_is_not_there_is_missed_where_it_should_come_from(probe: On, tmp_path: Path) -> None:
    on, remedies = probe("titan-rtx-nv2"), ("runtimeClassName: nvidia", "kubelet plugin", "hostDriver.folder")
    for access, remedy in zip(("", "DRA", "HostDriver"), remedies, strict=True):
        on.environment |= {"LD_LIBRARY_PATH": str(tmp_path), "NODEGAUGE_DRIVER_ACCESS": access}
        on.run()
        assert [text for text in remedies if text in last_message(on.termination_log)] == [remedy]


SIZE = r"""
import re, sys
from nodegauge_probes.cli import main
main()
peak = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]
print(peak, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def test_the_probe_is_small(probe: On) -> None:
    """Under 60 MB of memory, and nothing of Kubernetes, YAML or asyncio in the process."""
    on = probe("h100-sxm-8")
    run = on.python(SIZE, "health", "--window", "0")
    kib, *modules = run.stderr.split()
    assert int(kib) < 60 * 1024
    assert not {"kubernetes", "kopf", "yaml", "asyncio", "nodegauge_judge", "nodegauge_operator"} & set(
        modules
    )
    assert "pynvml" in modules


CLOSING = """
import sys, pynvml
from nodegauge_probes.collectors import sampling
from nodegauge_probes.cli import main
shutdown = pynvml.nvmlShutdown
pynvml.nvmlShutdown = lambda: (shutdown(), print("closed", file=sys.stderr))
if sys.argv.pop() == "broken":
    sampling.watch = None
main()
"""


@pytest.mark.parametrize(("state", "problem"), [("sound", None), ("broken", "crashed")])
def test_the_driver_is_let_go_of_once(probe: On, state: str, problem: str | None) -> None:
    """An open client blocks driver unload and GPU reset, so a crash in between closes it as well."""
    run = probe("titan-rtx-nv2").python(CLOSING, "health", "--window", "0", state)
    assert run.stderr == "closed\n"
    result = decode(run.stdout)
    assert (result.problem and result.problem.kind) == problem


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
