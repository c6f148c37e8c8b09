"""The probes by name, the environment and the exit codes; measures and writes nothing itself.

See probes/README.md for the contract.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from nodegauge_probes import health, output, pull
from nodegauge_probes.nccl import probe as nccl
from nodegauge_probes.nccl.clock import Limits
from nodegauge_probes.result_builder import Draft
from nodegauge_probes.runner import CallWatch, Run
from nodegauge_probes.settings import BadSettings, Settings, parse

BAD_ARGUMENTS = 2


def _health(draft: Draft, watch: CallWatch, *, settings: Settings) -> None:
    where = health.Settings(
        sysfs=settings.sysfs, procfs=settings.procfs, window=settings.window, hz=settings.hz
    )
    health.measure(draft, watch=watch, settings=where)


def _nccl(draft: Draft, watch: CallWatch, *, settings: Settings) -> None:
    nccl.measure(draft, watch=watch, settings=_nccl_settings(settings))


def _pull(draft: Draft, watch: CallWatch, *, settings: Settings) -> None:
    pull.run(draft, watch=watch, settings=_nccl_settings(settings))


def _nccl_settings(settings: Settings) -> nccl.Settings:
    startup, measure, teardown = settings.limits
    return nccl.Settings(
        engine=settings.engine,
        child=settings.child,
        expected=settings.expected,
        shared=settings.shared,
        environment=settings.environment,
        own=os.environ,
        limits=Limits(startup=startup, measure=measure, teardown=teardown),
        deadline=settings.deadline,
        budget=settings.budget,
        sysfs=settings.sysfs,
        procfs=settings.procfs,
    )


PROBES = {health.NAME: _health, nccl.NAME: _nccl, pull.NAME: _pull}


def main() -> int:
    """One run of one probe as the command line and the environment say; the exit code."""
    try:
        settings = parse(sys.argv[1:], os.environ, probes=list(PROBES), engines=list(nccl.ENGINES))
    except BadSettings as error:
        print(error, file=sys.stderr)
        return BAD_ARGUMENTS
    draft = Draft(probe=settings.probe, run=settings.run, node=settings.node)
    write = partial(output.write, form=settings.format, termination_log=settings.termination_log)
    run = Run(draft=draft, deadline=settings.deadline, write=write)
    return run.to_the_end(partial(PROBES[settings.probe], settings=settings))
