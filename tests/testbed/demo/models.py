"""What `nodegauge zero` says of the demo's cluster, by what its nodes were measured at."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import indent

from testbed.demo.session import Session
from testbed.errors import TestbedError


def decide(session: Session) -> None:
    """The largest model of each class; and a model for which nobody measured enough."""
    session.say("nodegauge zero, on this cluster: which models its nodes hold, and a 70B one")
    for arguments in ((), ("--model", "70B", "--compare", "HBM3, nvlink", "GB200")):
        command = [sys.executable, "-P", "-m", "nodegauge_cli", "zero", *arguments]
        own = {"KUBECONFIG": str(session.testbed.control_plane.kubeconfig), "COLUMNS": "80"}
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise TestbedError(f"nodegauge zero {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")
        print("\n" + indent(done.stdout, "    "), flush=True)
