"""Every rule, in the order in which findings of the same severity are listed; one module per subject.

To add a finding, write its check and its `Rule` in the module of its subject and put it into that module's
`RULES`.  A new subject is a new module and one line here.
"""

from __future__ import annotations

from nodegauge_judge.case import HealthRule
from nodegauge_judge.rules import (
    cables,
    clocks,
    contradictions,
    driver_errors,
    fleet,
    gpus,
    interconnect,
    kernel_log,
    machine,
    memory,
    memory_life,
    nics,
    nvlink,
    nvlink_errors,
    pasted,
    pcie,
    power,
    reading,
    sensors,
    settings,
    stated,
    thermal,
    throttling,
)

HEALTH_RULES: tuple[HealthRule, ...] = (
    *reading.RULES,
    *gpus.RULES,
    *nvlink.RULES,
    *nvlink_errors.RULES,
    *interconnect.RULES,
    *throttling.RULES,
    *thermal.RULES,
    *clocks.RULES,
    *power.RULES,
    *cables.RULES,
    *driver_errors.RULES,
    *kernel_log.RULES,
    *memory.RULES,
    *memory_life.RULES,
    *settings.RULES,
    *pcie.RULES,
    *nics.RULES,
    *sensors.RULES,
    *machine.RULES,
    *fleet.RULES,
    *contradictions.RULES,
    *reading.GAPS,
    *stated.RULES,
    *gpus.DIFFERENCES,
    *pasted.RULES,
)
