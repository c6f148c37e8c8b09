"""apt's lists of packages, fetched into the cache where the machine's own are missing or too old.

Nothing of the machine's apt is changed: APT_CONFIG, which every apt program heeds, names folders of our own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from testbed.errors import TestbedError

CONFIG = """\
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
"""


class ListsFailed(TestbedError):
    """apt cannot fetch its lists; the message quotes it."""


def fetch(cache: Path, *, progress: Callable[[str], None]) -> None:
    """From now on apt programs started from here use lists of our own, fetched now.  Raises ListsFailed."""
    folder = cache / "e2e" / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    config = folder / "apt.conf"
    config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
    progress("fetching apt's lists into the cache: the machine's own are missing or out of date")
    os.environ["APT_CONFIG"] = str(config)
    done = subprocess.run(["apt-get", "update", "-q"], capture_output=True, text=True, check=False)
    if done.returncode:
        output = done.stderr.strip()
        raise ListsFailed(
            f"apt-get update failed ({done.returncode}): {output}\nBehind a firewall set http_proxy."
        )
