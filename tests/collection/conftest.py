"""The collection as Ansible sees it, in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.playbook import Ansible, stage


@pytest.fixture
def ansible(tmp_path: Path) -> Ansible:
    """ansible-core with the collection staged."""
    stage(tmp_path)
    return Ansible(tmp_path)
