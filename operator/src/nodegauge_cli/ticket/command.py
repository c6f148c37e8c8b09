"""`nodegauge ticket NODE`: what a vendor needs for a replacement, from the objects that nodegauge keeps.

It asks the API server alone, never the node, so it also works for a node that does not answer, and from the
node's history after it is gone.  What Kubernetes does not know is named with the command that tells it.
"""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from nodegauge_cli.cluster import Cluster, NotThere, context_option
from nodegauge_cli.inputs import BadInput, name_of, text_of
from nodegauge_cli.reported import Unusable, objects
from nodegauge_cli.ticket.as_json import as_json
from nodegauge_cli.ticket.azure import azure
from nodegauge_cli.ticket.facts import TicketFacts
from nodegauge_cli.ticket.nvidia import nvidia
from nodegauge_cli.ticket.objects import Nothing, from_cluster, from_objects
from nodegauge_cli.ticket.text import text
from nodegauge_judge import Severity
from nodegauge_operator import names

FORMS = {"text": text, "nvidia": nvidia, "azure": azure, "json": as_json}
FILE_LIMIT = 32 * 1024 * 1024
"""Bytes of `--from`: some hundred nodes with their readings.  Chosen by this project."""
EXIT_NOTHING = 3


class NoFault(click.ClickException):
    """Nothing to report; the message says whether somebody looked."""

    exit_code = EXIT_NOTHING


@click.command()
@click.argument("node")
@click.option(
    "--for",
    "form",
    type=click.Choice(list(FORMS)),
    default="text",
    show_default=True,
    help="Whom it is for: NVIDIA's support, Azure's Guest Health Reporting, any other vendor, or a program.",
)
@click.option(
    "--from",
    "file",
    type=click.File("rb"),
    help="Read objects from this file (YAML or JSON, - for standard input) instead of a cluster.",
)
@click.option("--fault", default="", help="The finding that it is about, by its code. Default: the worst.")
@click.option(
    "--gone", is_flag=True, help="The machine of the NodeHistory's record, whoever has NODE's name now."
)
@click.option("--anyway", is_flag=True, help="Print what is known of the node although no fault is.")
@context_option
def ticket(
    node: str, form: str, file: BinaryIO | None, fault: str, gone: bool, anyway: bool, context: str
) -> None:
    """What a vendor needs to replace a part of NODE: the fault, serial numbers, counters, and logs to save.

    Everything comes from the Kubernetes API: NodeReport, NodeReading, Node, and ChassisReading, NodeHistory
    and the reports of other nodes where they can be read. Of a node that is gone, its NodeHistory tells. The
    ClusterRole nodegauge-view is enough; who may also read nodes gets the machine's ids. Nothing is sent.

    \b
    Exit code: 0 printed, 1 the cluster cannot be asked or does not know NODE, 2 bad input,
    3 no fault is known, or warnings alone (nothing is printed without --anyway).

    \b
    Examples:
      nodegauge ticket gpu-7 > gpu-7.txt
      nodegauge ticket gpu-7 --for azure | jq .body > body.json
      kubectl get nodereports,nodereadings,nodes -o json | nodegauge ticket gpu-7 --from -
    """
    facts = _facts(node, file, context, chosen=fault, gone=gone)
    if fault and fault not in (codes := [each.code for each in facts.faults]):
        raise BadInput(f"--fault {fault}: {node} has {', '.join(codes) or 'no fault'}")
    broken = facts.fault is not None and (fault or facts.fault.severity == Severity.FAIL)
    if not broken and (form == "azure" or not anyway):
        raise NoFault(_nothing(facts, form))
    sys.stdout.write(FORMS[form](facts))


def _facts(node: str, file: BinaryIO | None, context: str, *, chosen: str, gone: bool) -> TicketFacts:
    try:
        if file is None:
            return from_cluster(Cluster(context=context), node, chosen=chosen, gone=gone)
        return from_objects(objects(text_of(file, limit=FILE_LIMIT)), node, chosen=chosen, gone=gone)
    except Nothing as error:
        raise NotThere(str(error)) from None
    except Unusable as error:
        raise BadInput(f"{name_of(file) if file is not None else names.REPORT_KIND}: {error}") from None


def _nothing(facts: TicketFacts, form: str) -> str:
    """That there is nothing to report, and whether that means anything."""
    read = [probe for probe in facts.observed if probe.read_at]
    warnings = ", ".join(each.code for each in facts.faults)
    message = f"no fault of {facts.node} is known"
    message += f" but warnings (--fault makes a ticket of one): {warnings}" if warnings else ""
    if facts.verdict in ("pass", "warn") and read:
        seen = ", ".join(f"{probe.probe} at {probe.read_at}: {probe.verdict}" for probe in read)
        message += f". Last read: {seen}."
    else:
        message += f", and none is ruled out: {facts.summary or 'it was never read.'}"
    hint = "Azure takes no report without one." if form == "azure" else "--anyway prints what is known."
    return f"Nothing to report: {message} {hint}"
