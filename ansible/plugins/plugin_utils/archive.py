# nodegauge: Apache-2.0, see LICENSE
"""The archive of probes and judge: where it is on the controller, and how it comes to a host.

Must not run it; `judging` and the module_utils do.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

NAME = "nodegauge-host.pyz"
BUNDLED = Path(__file__).resolve().parents[2] / "files" / NAME


def on_controller(option: str | None) -> Path:
    """The archive of the option `archive`, else the collection's. AnsibleActionFail where there is none."""
    path = Path(option).expanduser() if option else BUNDLED
    if path.is_file():
        return path
    if option:
        raise AnsibleActionFail(f"archive: {path} is no file on the controller")
    raise AnsibleActionFail(
        f"the archive of probes is missing: {path}. Build it (`make tarball` in a checkout), install the "
        "released collection, which contains it, or name one with the option `archive`"
    )


@cache
def digest(path: Path) -> str:
    """SHA-256 of the file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy_to_host(action: Any, archive: Path) -> str:
    """Copy it into the task's temporary folder, which Ansible removes after the task; its path there."""
    shell = action._connection._shell
    if shell.tmpdir is None:
        action._make_tmp_path()
    remote = shell.join_path(shell.tmpdir, NAME)
    action._transfer_file(str(archive), remote)
    action._fixup_perms2((shell.tmpdir, remote))
    return remote


def keep_on_host(action: Any, archive: Path, kept: str, task_vars: dict[str, Any]) -> tuple[str, bool]:
    """The path of the archive to run, and whether `kept` had to be written (in check mode: would have)."""
    options = {
        "path": kept,
        "follow": True,
        "get_checksum": True,
        "checksum_algorithm": "sha256",
        "get_mime": False,
        "get_attributes": False,
    }
    stat = _module(action, "ansible.legacy.stat", options, task_vars)["stat"]
    if stat.get("checksum") == digest(archive):
        return kept, False
    if stat.get("isdir"):
        raise AnsibleActionFail(
            f"keep_archive: {kept} is a folder on the host; name a file, as {kept}/{NAME}"
        )
    remote = copy_to_host(action, archive)
    if action._task.check_mode:
        return remote, True
    options = {"src": remote, "dest": kept, "mode": "0644", "_original_basename": NAME, "follow": False}
    _module(action, "ansible.legacy.copy", options, task_vars)
    return kept, True


def _module(action: Any, name: str, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
    result = action._execute_module(module_name=name, module_args=options, task_vars=task_vars)
    if result.get("failed"):
        result["msg"] = f"keep_archive: {result.get('msg') or 'the host could not be asked'}"
        raise AnsibleActionFail(result["msg"], result=result)
    return result
