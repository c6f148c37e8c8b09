"""The probes that run once, by name: their settings from those of the command line.

Each imports its own modules: those of the load and NCCL probes take a fifth of a health probe's start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodegauge_probes import health
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.runner import CallWatch
from nodegauge_probes.settings import Settings

if TYPE_CHECKING:
    from nodegauge_probes.nccl import probe as nccl


def _health(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    health.measure(result, watch=watch, settings=health.settings_of(settings))


def _nccl(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    from nodegauge_probes.nccl import probe as nccl

    nccl.measure(result, watch=watch, settings=_nccl_settings(settings))


def _pull(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    from nodegauge_probes import pull

    pull.run(result, watch=watch, settings=_nccl_settings(settings))


def _nccl_settings(settings: Settings) -> nccl.Settings:
    from nodegauge_probes.nccl import probe as nccl
    from nodegauge_probes.nccl.supervisor import LOAD_S, Limits

    startup, measure, teardown = settings.limits
    return nccl.Settings(
        engine=settings.engine,
        child=settings.child,
        processes=settings.processes,
        expected=settings.expected,
        shared=settings.shared,
        nccl_variables=settings.nccl_variables,
        environment=os.environ,
        limits=Limits(startup=startup, load=startup or LOAD_S, measure=measure, teardown=teardown),
        deadline=settings.deadline,
        budget=settings.budget,
        sysfs=settings.sysfs,
        procfs=settings.procfs,
    )


def _load(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    from nodegauge_probes.load import probe as load

    own = load.Settings(
        seconds=settings.seconds,
        hz=settings.hz,
        stop_below=settings.stop_below,
        expected=settings.expected,
        shared=settings.shared,
        environment=os.environ,
        deadline=settings.deadline,
        sysfs=settings.sysfs,
        procfs=settings.procfs,
        storage=settings.storage,
    )
    load.measure(result, watch=watch, settings=own)


def _feed(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    from nodegauge_probes.feed import probe as feed
    from nodegauge_probes.feed.window import Roots

    roots = Roots(
        procfs=settings.procfs, sysfs=settings.sysfs, groups=settings.control_groups, dcgm=settings.dcgm
    )
    feed.measure(result, watch=watch, roots=roots, seconds=settings.seconds)


MEASURE = {"health": _health, "nccl": _nccl, "pull": _pull, "load": _load, "feed": _feed}
"""By name."""
