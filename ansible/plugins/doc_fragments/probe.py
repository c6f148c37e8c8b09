# nodegauge: Apache-2.0, see LICENSE
"""Options that all modules of probes have."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment `nodegauge.gpu.probe`."""

    DOCUMENTATION = r"""
options:
  policy:
    description:
      - What to judge by. A GPUValidationPolicy as in a cluster, or its C(spec).
      - Its thresholds and expectations count. Without it, the defaults do.
    type: dict
  before:
    description: An earlier RV(document) of the same probe and host. Growth since then is judged too.
    type: dict
  expected_gpus:
    description: How many GPUs the host should have. V(0) expects what O(policy) says, or nothing.
    type: int
    default: 0
  name:
    description:
      - The host's name in RV(document) and in findings.
      - Without it, the name of the inventory.
    type: str
  archive:
    description:
      - Path on the controller of the archive to use instead of the collection's C(files/nodegauge-host.pyz).
    type: path
  keep_archive:
    description:
      - Path on the host where the archive is kept, and used again by the next task.
      - It is written only if it is missing or another version. The task is then C(changed).
      - Without it, the archive is removed with the task's temporary files.
    type: path
  bring_python:
    description:
      - Path on the controller of a tar file with a relocatable CPython, for hosts without a Python that fits.
      - It is unpacked in the task's temporary folder, and removed with it. It is copied only to hosts that
        need it, once for each task.
    type: path
attributes:
  action_group:
    description: Use C(group/nodegauge.gpu.gpu) in C(module_defaults) to set defaults of these modules.
    support: full
    membership: [nodegauge.gpu.gpu]
  check_mode:
    description: Can run in check mode and tell what it would change.
  diff_mode:
    description: Shows what changed.
    support: none
  async:
    description: Supports the keyword C(async).
    support: none
  platform:
    description: Where it runs.
    support: full
    platforms: linux
requirements:
  - On the host, an NVIDIA driver, and CPython 3.9 to 3.14 on Linux with glibc (x86-64 or arm64). It need not
    be the Python that Ansible uses. PATH, C(/usr/local/bin), C(/usr/bin) and C(/opt/*/bin) are searched, and
    O(bring_python) brings one.
  - On the controller, Python 3.10 or newer.
notes:
  - Nothing is left on the host, unless O(keep_archive) asks for it. The probe unpacks itself into a private
    folder and removes it.
  - If temporary files must not hold programs (C(noexec)), set C(ansible_remote_tmp), or TMPDIR in
    C(environment).
  - The probe needs no root. As another user than root it cannot read a few values, which then stay unjudged.
  - The keyword C(async) is refused, because the controller judges after the probe. Hosts are measured at the
    same time, up to C(forks). For long probes over SSH set C(ServerAliveInterval).
"""
