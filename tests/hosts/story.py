"""`make hosts ARGS=--once`: what a person does with the hosts, from a typo to the last repair."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from galaxy.commands import CheckFailed, Done, run
from hosts import fleet, transcript
from hosts.fleet import Hosts
from hosts.transcript import TYPO, Step
from support.playbook import CALLBACKS, TOOLS, Played, Task
from testbed.errors import TestbedError

SICK: dict[str, tuple[str, dict[str, str], str]] = {
    "gpu-02": ("gpu-lost", {"gpu": "5", "nvml": "absent", "pci": "gone"}, "unexpected-gpu-count"),
    "gpu-03": ("gpu-lost", {"gpu": "2"}, "gpu-lost"),
    "gpu-04": ("p2p-refused", {}, "p2p-refused"),
    "gpu-05": ("insufficient-power", {"gpu": "1"}, "insufficient-power"),
    "gpu-06": ("driver-mismatch", {}, "driver-mismatch"),
}
"""By host: the fault, its parameters, and the first reason that the verdict must give."""
LEAST = 8
SECONDS = 3600.0
"""For one play: only a failure takes so long."""
VERDICT = "nodegauge.gpu.validate : Give the verdict"
MEASURE = "nodegauge.gpu.validate : Measure health"


@dataclass
class Story:
    hosts: Hosts
    say: Callable[[str], None]
    steps: list[Step] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.hosts.directory

    def command(self, *arguments: str) -> None:
        shown = f"python -m hosts {' '.join(arguments)}"
        self.say(f"$ {shown}")
        done = _run([sys.executable, "-m", "hosts", "--dir", str(self.directory), *arguments], self.directory)
        self.say(done.expect(shown).rstrip())
        self.steps.append(Step(shown, None))

    def play(self, *options: str) -> Played:
        record = self.directory / "tasks.jsonl"
        record.unlink(missing_ok=True)
        shown = " ".join(["ansible-playbook .hosts/accept.yml", *options])
        self.say(f"$ {shown}")
        began, cpu = time.monotonic(), self._cpu()
        done = _ansible(self.directory, record, options)
        after = self._cpu()
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        played = Played(done.code, done.output, [Task(**json.loads(line)) for line in lines])
        self.steps.append(Step(shown, played))
        self.say(transcript.cut(played))
        measured = len([task for task in played.tasks if task.name == MEASURE])
        spent = ", ".join(f"{name} {after[name] - cpu[name]:.1f} s" for name in cpu)
        self.say(
            f"(exit code {done.code}, {measured} hosts, {time.monotonic() - began:.1f} s; CPU: {spent})\n"
        )
        return played

    def _cpu(self) -> dict[str, float]:
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {"controller": own.ru_utime + own.ru_stime, "hosts": self.hosts.cpu_seconds()}


def _run(command: Sequence[object], directory: Path, **more: str) -> Done:
    """A command with nothing of the caller's Ansible in its environment; ssh's masters end with the hosts."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    try:
        return run(command, cwd=directory, env=environ | more, seconds=SECONDS)
    except CheckFailed as failure:
        raise TestbedError(str(failure)) from failure


def _ansible(directory: Path, record: Path, options: Sequence[str]) -> Done:
    own = {
        "PATH": f"{TOOLS}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(directory),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(directory / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS),
        "ANSIBLE_CALLBACKS_ENABLED": "record",
        "RECORD_TASKS": str(record),
    }
    return _run([TOOLS / "ansible-playbook", str(directory / "accept.yml"), *options], directory, **own)


def check(what: str, seen: object, wanted: object, played: Played) -> None:
    if seen != wanted:
        end = "\n".join(played.output.splitlines()[-60:])
        raise TestbedError(f"{what}: {seen!r} instead of {wanted!r}; the end of the output:\n{end}")


def refused(story: Story) -> None:
    played = story.play("-e", f"{TYPO}=8")
    measured = [task.host for task in played.tasks if task.name == MEASURE and task.status == "ok"]
    check("hosts measured in spite of a typo", measured, [], played)
    check(
        "the typo is named and the play fails", (TYPO in played.output, played.code > 0), (True, True), played
    )


def accepted(story: Story, sick: Mapping[str, str], *options: str) -> Played:
    played = story.play(*options)
    verdicts = {task.host: task.status for task in played.tasks if task.name == VERDICT}
    failed = [host for host, status in verdicts.items() if status == "failed"]
    check("hosts that must not join", sorted(failed), sorted(sick), played)
    messages = {host: played.task(VERDICT, host).result["msg"] for host in failed}
    missing = {host: code for host, code in sick.items() if f" {code}: " not in messages[host]}
    check("reasons that no message gives", missing, {}, played)
    check("the exit code", played.code, 2 if sick else 0, played)
    return played


def rows(story: Story) -> dict[str, str]:
    report = json.loads((story.directory / "report" / "report.json").read_text(encoding="utf-8"))
    return {row["host"]: row["verdict"] for row in report["hosts"]}


def perform(story: Story, machines: Mapping[str, str]) -> None:
    reasons = {host: code for host, (_, _, code) in SICK.items()}
    for host, (name, parameters, _) in SICK.items():
        story.command("fault", host, name, *(f"{key}={value}" for key, value in parameters.items()))
    refused(story)
    first = accepted(story, reasons)
    check("rows of the report", sorted(rows(story)), sorted(machines), first)
    two = dict(list(reasons.items())[:2])
    before = rows(story)
    again = accepted(story, two, "--check", "--limit", ",".join(two))
    check("the report after check mode", rows(story), before, again)
    for host in SICK:
        story.command("heal", host)
    repaired = accepted(story, {}, "--limit", ",".join(SICK))
    check("rows of the report", rows(story), dict.fromkeys(machines, "pass"), repaired)
    accepted(story, {})


def tell(directory: Path, count: int, *, write: bool, say: Callable[[str], None]) -> int:
    """0 where every step ended as it must, and ansible/README.md shows what was seen."""
    if count < LEAST:
        raise TestbedError(f"the story needs {LEAST} hosts: five are sick, and some are not")
    machines = fleet.named(count)
    with fleet.serving(directory / ".hosts", machines, say) as hosts:
        story = Story(hosts, say)
        perform(story, machines)
    say(f"{count} hosts: every step ended as it must")
    text = transcript.render(story.steps, count)
    return transcript.compare(text, write=write, say=say)
