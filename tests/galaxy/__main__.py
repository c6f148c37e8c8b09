"""`make collection`, `make tarball`.  A failure stops no other check; what cannot run here is listed."""

import argparse
import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from galaxy import build, checks, environments, sanity
from galaxy.commands import CheckFailed, Core, NotRun
from galaxy.environments import NEWEST, OLDEST, Wanted
from support.playbook import ROOT, TOOLS
from testbed.binaries import cache_folder
from testbed.interruption import alone, interruptible
from testbed.table import table


@dataclass(frozen=True)
class Outcome:
    check: str
    result: str
    seconds: float
    remark: str


@dataclass
class Run:
    folder: Path
    cache: Path
    again: bool = False
    outcomes: list[Outcome] = field(default_factory=list)

    def check(self, name: str, action: Callable[[], str]) -> bool:
        say(f"[{len(self.outcomes) + 1}] {name} ...")
        began = time.monotonic()
        try:
            result, remark = "ok", action()
        except NotRun as reason:
            result, remark = "not run", str(reason)
        except CheckFailed as failure:
            result, remark = "FAILED", str(failure).splitlines()[0]
            say(str(failure))
        self.outcomes.append(Outcome(name, result, time.monotonic() - began, remark))
        say(f"[{len(self.outcomes)}] {name}: {result} ({self.outcomes[-1].seconds:.0f} s) {remark}".rstrip())
        return result == "ok"

    def everything(self) -> None:
        """ansible-test takes longest: it runs for every ansible-core at the same time, each on a copy."""
        core = Core(self.folder / "installed", TOOLS, version=version_of(TOOLS))
        core.folder.mkdir()
        if not self.check("archive and tarball", lambda: self.tarball(core)):
            return
        if not self.check("install, list, verify", lambda: self.installed(core)):
            return
        cores = {f"ansible-core {core.version}": core}  # `make test` plays with this one
        with contextlib.ExitStack() as running:
            ends: dict[str, Callable[[], str]] = {}

            def begin(label: str) -> None:
                action = partial(self.sanity, cores[label], label, running, ends)
                self.check(f"{label}: ansible-test begins", action)

            begin(*cores)
            for wanted in (OLDEST, NEWEST):
                if self.with_wanted(wanted, core, cores):
                    begin(list(cores)[-1])
            lint = partial(_in_the_collection, core, "antsibull-changelog", "lint")
            self.check("changelog (antsibull-changelog lint)", lint)
            self.check("ansible-lint, profile production", lambda: self.lint(core))
            self.check("ansible-test units and integration", lambda: tests_inside(core))
            for label, other in list(cores.items())[1:]:
                self.with_core(other, label)
            for label, end in ends.items():
                self.check(f"{label}: ansible-test sanity", end)

    def tarball(self, core: Core) -> str:
        built = build.tarball(core, staging=self.folder / "staged", into=DIST)
        return f"{built.relative_to(ROOT)}, {built.stat().st_size / 1e6:.1f} MB"

    def installed(self, core: Core) -> str:
        [built] = DIST.glob("*.tar.gz")
        return build.install(core, built).name

    def sanity(
        self, core: Core, label: str, running: contextlib.ExitStack, ends: dict[str, Callable[[], str]]
    ) -> str:
        """Begin it on a copy of what was installed, with all Pythons of this machine; which those are."""
        pythons = self.folder / "pythons"
        present = environments.pythons(pythons)
        own = replace(core, folder=self.folder / f"sanity-{core.version}")
        shutil.copytree(core.folder / "ansible_collections", own.folder / "ansible_collections")
        home = self.folder / f"home-{core.version}"
        test = sanity.begun(own, pythons=pythons, cache=self.cache, home=home, again=self.again)
        ends[label] = running.enter_context(test)
        return f"Pythons on this machine: {', '.join(present)}"

    def with_wanted(self, wanted: Wanted, core: Core, cores: dict[str, Core]) -> bool:
        label = f"ansible-core {wanted.version} ({wanted.name})"

        def prepare() -> str:
            tools = environments.environment(wanted, self.cache)
            cores[label] = replace(core, tools=tools, version=wanted.version)
            return tools.parent.name

        return self.check(f"{label}: environment", prepare)

    def lint(self, core: Core) -> str:
        """Like ansible-test, not repeated on the same files, which are digested with its versions."""
        tools = hashlib.sha256(repr(LINT).encode() + (ROOT / "constraints.txt").read_bytes()).hexdigest()[:12]
        passed = self.cache / "passed" / f"lint-{sanity.digest(core, self.folder / 'pythons')}-{tools}"
        if passed.exists() and not self.again:
            return f"passed before with the same files. {passed.read_text('utf-8')}"
        lines = _in_the_collection(core, *LINT).strip().splitlines()
        passed.parent.mkdir(exist_ok=True)
        passed.write_text("".join(lines[-1:]), "utf-8")
        return passed.read_text("utf-8")

    def with_core(self, core: Core, label: str) -> None:
        self.check(f"{label}: ansible-doc of everything", lambda: checks.check_docs(core, core.collection))
        self.check(f"{label}: syntax of playbooks", lambda: checks.check_playbooks(core, core.collection))
        machines = self.folder / f"machines-{core.version}"
        self.check(f"{label}: a play on two simulated hosts", lambda: checks.check_play(core, machines))


DIST = ROOT / "dist" / "collection"
LINT = ("ansible-lint", "--profile", "production", "--strict", "--offline", "--nocolor")


def version_of(tools: Path) -> str:
    [match] = tools.parent.glob("lib/python3*/site-packages/ansible_core-*.dist-info")
    return match.name.removeprefix("ansible_core-").removesuffix(".dist-info")


def tests_inside(core: Core) -> str:
    python = f"--python={sys.version_info[0]}.{sys.version_info[1]}"
    for part in ("units", "integration"):
        _in_the_collection(core, "ansible-test", part, python, "--color", "no")
    return ""


def _in_the_collection(core: Core, program: str, *options: str) -> str:
    command = Core(core.collection, core.tools, version=core.version)
    home = {"HOME": str(core.folder), "ANSIBLE_HOME": str(core.folder / ".ansible")}
    return command.expect(program, *options, more={**home, "ANSIBLE_COLLECTIONS_PATH": str(core.folder)})


def tarball_alone() -> int:
    with tempfile.TemporaryDirectory(prefix="nodegauge-collection-") as made:
        current = Run(Path(made), Path())
        core = Core(current.folder / "home", TOOLS, version=version_of(TOOLS))
        core.folder.mkdir()
        return int(not current.check("archive and tarball", lambda: current.tarball(core)))


def perform(*, again: bool) -> int:
    """One run at a time, for all share the environments in the cache; the exit code."""
    cache = cache_folder(os.environ) / "collection"
    cache.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (
        alone(cache / "lock", waits=lambda: say("another run is under way; waiting for its end")),
        tempfile.TemporaryDirectory(prefix="nodegauge-collection-") as made,
    ):
        current = Run(Path(made), cache, again)
        current.everything()
    rows = [
        (one.check, one.result, f"{one.seconds:.0f} s", one.remark * (one.result != "ok"))
        for one in current.outcomes
    ]
    print(f"\n{table(rows)}\n\neverything took {time.monotonic() - began:.0f} s", flush=True)
    return int(not current.outcomes or any(outcome.result == "FAILED" for outcome in current.outcomes))


def say(message: str) -> None:
    print(f"nodegauge collection: {message}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make collection", description="Build and check the Ansible collection."
    )
    parser.add_argument("--again", action="store_true", help="repeat checks that passed with the same files")
    parser.add_argument("--tarball", action="store_true", help="build the tarball alone, and check nothing")
    options = parser.parse_args(arguments)
    interruptible()
    try:
        return tarball_alone() if options.tarball else perform(again=options.again)
    except KeyboardInterrupt as interrupt:
        say(f"interrupted by {interrupt}; nothing that was started is left")
        return 130


if __name__ == "__main__":
    sys.exit(main())
