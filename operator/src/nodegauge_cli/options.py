"""What options of several subcommands have in common: callbacks for `click.option`.

A wrong value ends in click's usage error, which names the option.
"""

from __future__ import annotations

import click

from nodegauge_operator.api.policy import seconds


def duration(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    """Seconds, written as in policies and values: 90s, 2m, 1h30m."""
    try:
        return seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
