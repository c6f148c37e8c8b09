# nodegauge: Apache-2.0, see LICENSE
"""The controller's half of gpu_health: see plugin_utils/probe_action.py."""

from __future__ import annotations

from ansible_collections.nodegauge.gpu.plugins.module_utils.probe import ARGUMENTS
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.probe_action import ProbeAction


class ActionModule(ProbeAction):
    """Brings the probe to the host, and judges what it read."""

    arguments = ARGUMENTS["health"]
