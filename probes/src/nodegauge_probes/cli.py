"""The probes by name, their settings and the exit codes.

See probes/README.md for the contract.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from nodegauge_probes import health, output, pull
from nodegauge_probes.nccl import probe as nccl
from nodegauge_probes.nccl.supervisor import Limits
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.runner import CallWatch, Run
from nodegauge_probes.settings import BadSettings, Settings, parse

BAD_ARGUMENTS = 2


def _health(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    own = health.Settings(
        sysfs=settings.sysfs, procfs=settings.procfs, window=settings.window, hz=settings.hz
    )
    health.measure(result, watch=watch, settings=own)


def _nccl(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    nccl.measure(result, watch=watch, settings=_nccl_settings(settings))


def _pull(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    pull.run(result, watch=watch, settings=_nccl_settings(settings))


def _nccl_settings(settings: Settings) -> nccl.Settings:
    startup, measure, teardown = settings.limits
    return nccl.Settings(
        engine=settings.engine,
        child=settings.child,
        expected=settings.expected,
        shared=settings.shared,
        nccl_variables=settings.nccl_variables,
        environment=os.environ,
        limits=Limits(startup=startup, measure=measure, teardown=teardown),
        deadline=settings.deadline,
        budget=settings.budget,
        sysfs=settings.sysfs,
        procfs=settings.procfs,
    )


PROBES = {health.NAME: _health, nccl.NAME: _nccl, pull.NAME: _pull}


def main() -> int:
    """Run one probe with the settings of command line and environment; returns the exit code."""
    try:
        settings = parse(sys.argv[1:], os.environ, probes=list(PROBES), engines=list(nccl.ENGINES))
    except BadSettings as error:
        print(error, file=sys.stderr)
        return BAD_ARGUMENTS
    result = ResultBuilder(probe=settings.probe, run=settings.run, node=settings.node)
    write = partial(output.write, form=settings.format, termination_log=settings.termination_log)
    run = Run(result=result, deadline=settings.deadline, write=write)
    return run.run(partial(PROBES[settings.probe], settings=settings))
