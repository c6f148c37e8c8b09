"""`ansible-playbook` as a fork of a process that has it loaded, with the options that its plugins document:
three quarters of the CPU time of a short play.  `main` reads the settings again, as they are now."""

import atexit
import os
import sys
import tempfile

HOMES = ("HOME", "ANSIBLE_HOME")

with tempfile.TemporaryDirectory() as _nothing:
    os.environ.update(dict.fromkeys(HOMES, _nothing))
    import ansible.constants as constants
    import ansible.plugins.loader as loader
    from ansible.cli import playbook
    from ansible.executor import task_executor as _later  # noqa: F401
    from ansible.executor.process import worker as _later_still  # noqa: F401

    for _plugins in (loader.callback_loader, loader.connection_loader, loader.become_loader):
        for _plugin in _plugins.all(class_only=True):
            pass  # its options are in `constants.config` now


def main() -> int:
    """Play by `sys.argv`; what Ansible would leave to its exit is done, too."""
    tempfile.tempdir = None
    atexit._clear()
    settings = vars(constants)
    for setting in constants.config.get_configuration_definitions():
        constants.set_constant(setting, constants.config.get_config_value(setting, variables=settings))
    sys.argv[0] = "ansible-playbook"
    try:
        return int(playbook.main() or 0)
    finally:
        atexit._run_exitfuncs()
