"""Builds, installs and checks the Ansible collection as a stranger would: `make collection`."""
