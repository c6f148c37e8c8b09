"""`nodegauge`, the group of all subcommands: names, one line of help each, and where to import them from.

Nothing of a subcommand is imported before it is called, not even for `nodegauge --help`.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click


class Lazy(NamedTuple):
    """A subcommand: its module (the function has the subcommand's name), its line of help, its extra."""

    module: str
    help: str
    extra: str


SUBCOMMANDS = {
    "apply": Lazy("nodegauge_cli.apply", "Write a GPUValidationPolicy, once its CRD is served.", "operator"),
    "check": Lazy("nodegauge_cli.check", "Ask whether an installed operator lives and works.", "operator"),
    "cleanup": Lazy(
        "nodegauge_cli.cleanup.command", "Remove everything that nodegauge wrote into a cluster.", "operator"
    ),
    "judge": Lazy("nodegauge_cli.judge", "Judge a result, a report or a log, with no cluster needed.", "cli"),
    "zero": Lazy(
        "nodegauge_cli.zero", "Time that DDP and ZeRO spend in communication, by node class.", "cli"
    ),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in alphabetical order."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand; a missing library ends in an error that names the extra that brings it."""
        lazy = SUBCOMMANDS.get(cmd_name)
        if lazy is None:
            return None
        try:
            command = getattr(import_module(lazy.module), cmd_name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("nodegauge_"):
                raise
            raise click.ClickException(
                f"`{cmd_name}` needs the Python package {error.name}: pip install 'nodegauge[{lazy.extra}]'"
            ) from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of subcommands in `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].help) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nodegauge", prog_name="nodegauge")
def main() -> None:
    """Tell the truth about GPU nodes: measured, judged, explained."""


if __name__ == "__main__":
    main(prog_name="nodegauge")
