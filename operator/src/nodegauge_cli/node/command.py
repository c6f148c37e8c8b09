"""`nodegauge node`: measure this machine with the probes, and judge what they read, without a cluster.

The judgement and its text are those of `nodegauge judge`, the history is what a NodeReport would keep.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

import click

from nodegauge_cli.inputs import BadInput
from nodegauge_cli.judge import Section, criteria_of, criteria_options, tell
from nodegauge_cli.judging import Criteria, Kept, judged
from nodegauge_cli.node import history, process
from nodegauge_cli.node.progress import Progress
from nodegauge_cli.output import output_option, write_whole
from nodegauge_cli.reported import Unusable
from nodegauge_judge import History
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.probes.registry import KINDS

MEASURES = {names.PROBE_HEALTH, names.PROBE_NCCL, names.PROBE_LOAD}
PROBES = tuple(name for name in KINDS if name in MEASURES)
"""In the order in which the operator runs them."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NEEDS = {"nodegauge_probes": "nodegauge-probes", "pynvml": "nvidia-ml-py"}
"""Modules that the probes need, and the package of each."""
UNCOMPARED = (
    "Compared with no earlier run: a GPU that is gone altogether is noticed only with --history FILE, or a "
    "--policy with expectedGpus."
)


@click.command()
@click.option(
    "--probe",
    "probes",
    multiple=True,
    type=click.Choice(PROBES),
    help="The probe to run; may be repeated (default: health). nccl and load use all GPUs for a minute.",
)
@click.option(
    "--history",
    "kept_in",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep what the next run needs in this file: it then knows the GPUs, and how much counters grew.",
)
@click.option(
    "--html",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a page, as `nodegauge report` does.",
)
@criteria_options
@output_option("text", "json")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS]")
def node(
    probes: tuple[str, ...],
    kept_in: Path | None,
    target: Path | None,
    policy: Path | None,
    cables: Path | None,
    form: str | None,
    options: tuple[str, ...],
) -> None:
    """Measure this machine, and judge what was read. Needs no root, and changes nothing.

    OPTIONS behind -- are the probes' own: `python -m nodegauge_probes --help` lists them. Several probes run
    one after the other; if health cannot read the GPUs, it is the only one.

    \b
    Exit code, the worst of the probes: 0 pass or warn, 1 fail, 3 unknown.
    2: wrong arguments, or a file could not be written.
    130: interrupted, and nothing is judged.

    \b
    Examples:
      nodegauge node
      nodegauge node --history ~/.local/state/nodegauge.json
      nodegauge node --probe health --probe nccl --probe load --html gpus.html
      nodegauge node --probe load -- --seconds 120
    """
    criteria = criteria_of(policy, cables)
    _check_packages()
    _check_folders(kept_in, target)
    kept = history.read(kept_in)
    progress = Progress(sys.stderr)
    asked = [name for name in PROBES if name in (probes or (names.PROBE_HEALTH,))]
    if cables is not None and names.PROBE_HEALTH not in asked:
        raise click.UsageError("--power-inventory is for the health probe")
    with _stoppable(progress):
        runs = [*_runs(asked, options, criteria, kept, progress)]
    sections = [run.section for run in runs]
    files = {kept_in: history.text(runs[-1].kept)} if kept_in is not None else {}
    if target is not None:
        from nodegauge_cli.node.page import of_sections

        files[target] = of_sections(sections, criteria=criteria, at=stamp(time.time()))
    unwritten = _write(files)  # first: the reader of a pipe may go
    code = tell(sections, as_json=form == "json")
    if kept_in is None and criteria.node.expected_gpus is None and form != "json":
        click.echo(UNCOMPARED, err=True)
    if unwritten:
        raise BadInput("\n".join(unwritten))
    raise SystemExit(code)


class Run(NamedTuple):
    """One probe's run: its judgement, or why it has none, and what the next one needs."""

    section: Section
    kept: Kept


def _runs(
    asked: Sequence[str], options: Sequence[str], criteria: Criteria, kept: Kept, progress: Progress
) -> Iterator[Run]:
    """One probe after the other."""
    unreadable = False
    for name in asked:
        run = Run(_not_run(name), kept) if unreadable else _run(name, options, criteria, kept, progress)
        kept = run.kept
        judgement = run.section.judgement
        unreadable = unreadable or (name == names.PROBE_HEALTH and not getattr(judgement, "readable", False))
        yield run


def _run(name: str, options: Sequence[str], criteria: Criteria, kept: Kept, progress: Progress) -> Run:
    """Raises `BadInput` for options that the probe refuses."""
    known = History.decode(kept.health)
    progress.begin(name)
    try:
        result = process.run(name, options, gpus=len(known.gpus) if known else 0, progress=progress)
        judgement = judged(result, criteria, kept=kept, read_at=time.time(), cluster=False)
    except process.BadOptions as error:
        raise BadInput(str(error)) from None
    except Unusable as error:
        return Run(Section(name, error, error), kept)
    finally:
        progress.clear()
    return Run(Section(name, result, judgement), kept.after(result, judgement))


def _not_run(name: str) -> Section:
    why = Unusable("the health probe could not read the GPUs, so this one was not run")
    return Section(name, why, why)


def _check_packages() -> None:
    """Raises `BadInput` if a package is missing without which no probe can run."""
    for module, package in NEEDS.items():
        if find_spec(module) is None:
            raise BadInput(
                f"`node` needs the Python package {package}. In a checkout of nodegauge: "
                "pip install '.[probes,cli]'; for --probe nccl also the extra `nccl`"
            )


def _check_folders(*files: Path | None) -> None:
    """Raises `BadInput` if a file could not be written; better now than after a minute of NCCL."""
    for file in files:
        if file is not None and not os.access(file.absolute().parent, os.W_OK):
            raise BadInput(f"{file}: there is no such folder, or you may not write to it")


def _write(files: Mapping[Path, str]) -> list[str]:
    """Write the texts; what could not be written, and why."""
    problems = []
    for file, text in files.items():
        try:
            write_whole(file, text)
        except OSError as error:
            problems.append(f"{file}: {error.strerror}")
    return problems


@contextmanager
def _stoppable(progress: Progress) -> Iterator[None]:
    """A signal to end stops the probe that runs, then this program."""

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    except SystemExit:
        progress.clear()
        click.echo("Interrupted: the probe was stopped, and nothing is judged.", err=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
