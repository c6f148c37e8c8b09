"""`nodegauge zero`: bigger GPUs, more GPUs or offload; and the communication of DDP and ZeRO.  It changes
nothing."""

from __future__ import annotations

from typing import Any

import click

from nodegauge_cli.zero import communication, decision
from nodegauge_cli.zero.options import COMMUNICATION, MODEL, SOURCE, Options, check, with_options


@click.command()
@with_options(MODEL, SOURCE, COMMUNICATION)
@click.pass_context
def zero(context: click.Context, /, **given: Any) -> None:
    """Say which nodes hold a model, how, and what a step costs: bigger GPUs, more GPUs, or offload.

    \b
    Examples:
      nodegauge zero                      what the cluster is good for
      nodegauge zero --model 70B          ways on each class of nodes
      nodegauge zero --model 7B --compare H100 L40S
      nodegauge zero --model 7B --manifest
      nodegauge zero --params 7B          communication alone, from measured bandwidth
      all_gather_perf -b 1G -e 1G -g 8 | nodegauge zero --params 7B --report -

    A value that nobody measured is unknown, and the time of a step then a lower bound.
    """
    check(context)
    options = Options(**given)
    (decision if options.params is None else communication).show(options)
