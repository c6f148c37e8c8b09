"""Builds nodegauge's container images without a container engine and without root: see README.md here.

Not part of the installed project.  Needs the standard library, pip and Debian's package tools.
"""
