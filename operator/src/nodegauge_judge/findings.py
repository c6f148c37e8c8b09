"""The catalogue of findings: every code the judge may use, what it means and what to do about it.

One row per code.  `docs/reference/findings.md` is generated from here (`reference`), messages end with the
row's `next_step`, and the command line prints its `way_out`.  A code that is not here cannot be reported.  No
rules here: when a code is used is decided in `checks` and `nccl`.
"""

from __future__ import annotations

from nodegauge_judge.entry import Code, Effect, Entry, Probe
from nodegauge_judge.findings_bandwidth import BANDWIDTH_ENTRIES
from nodegauge_judge.findings_board import BOARD_ENTRIES
from nodegauge_judge.findings_collectives import COLLECTIVE_ENTRIES
from nodegauge_judge.findings_hardware import HARDWARE_ENTRIES
from nodegauge_judge.findings_heat import HEAT_ENTRIES
from nodegauge_judge.findings_memory import MEMORY_ENTRIES
from nodegauge_judge.findings_reading import READING_ENTRIES
from nodegauge_judge.findings_supply import SUPPLY_ENTRIES

__all__ = ["CATALOGUE", "Code", "Effect", "Entry", "Probe"]

_ENTRIES = (
    *HARDWARE_ENTRIES,
    *HEAT_ENTRIES,
    *MEMORY_ENTRIES,
    *BOARD_ENTRIES,
    *SUPPLY_ENTRIES,
    *READING_ENTRIES,
    *BANDWIDTH_ENTRIES,
    *COLLECTIVE_ENTRIES,
)
CATALOGUE: dict[Code, Entry] = {entry.code: entry for entry in _ENTRIES}
"""Every code's row, in the order of the reference page."""
