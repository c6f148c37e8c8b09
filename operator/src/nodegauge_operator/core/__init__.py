"""Decisions, and nothing else: pure functions of what was read, with time as an argument.

No kopf, no kubernetes, no clock, no I/O.  What to write next, when to run, how a run ended, what a node
should carry: each is one function here that tests call with plain values.
"""
