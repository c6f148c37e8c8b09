"""Fuzzing: documents, policies, reports, pods, nodes and BMC readings that nobody meant to write."""
