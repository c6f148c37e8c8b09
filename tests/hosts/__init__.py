"""Simulated GPU hosts behind real sshd, for Ansible: `make hosts`, `python -m hosts`."""
