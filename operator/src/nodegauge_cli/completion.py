"""Completion: names of nodes and policies, and the program by which kubectl completes `kubectl nodegauge`.

Shells complete `nodegauge` itself by click's own scripts (docs/kubectl.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem, ShellComplete

NO_FILES = ":4"
"""The last line of an answer: complete no names of files (cobra, ShellCompDirectiveNoFileComp)."""


def node_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Nodes with a report, or none where no cluster answers: the shell_complete of an argument NODE."""
    from nodegauge_cli.cluster import REPORTS

    return list(_names(context, REPORTS, incomplete))


def policy_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The same of policies."""
    from nodegauge_cli.cluster import POLICIES

    return list(_names(context, POLICIES, incomplete))


def kubectl() -> None:
    """`kubectl_complete-nodegauge WORD...`: candidates for the last word, as kubectl asks for them.

    kubectl runs the program of this name on PATH, and reads what cobra's `__complete` would print: a
    candidate a line, its description after a tab, and a directive (kubectl, pkg/cmd/plugin_completion.go).
    """
    from nodegauge_cli.__main__ import PLUGIN, main

    *arguments, incomplete = sys.argv[1:] or [""]
    for item in ShellComplete(main, {}, PLUGIN, "").get_completions(arguments, incomplete):
        click.echo(_line(item))
    click.echo(NO_FILES)


def called() -> str:
    """The program as the user called it: `nodegauge` or `kubectl nodegauge`."""
    return click.get_current_context().find_root().info_name or "nodegauge"


def _line(item: CompletionItem) -> str:
    return f"{item.value}\t{item.help}" if item.help else str(item.value)


def _names(context: click.Context, path: str, incomplete: str) -> Iterator[str]:
    from nodegauge_cli.cluster import Cluster, NoCluster

    try:
        for body in Cluster(context=context.params.get("context") or "").each(path):
            if (name := body["metadata"]["name"]).startswith(incomplete):
                yield name
    except NoCluster:
        return
