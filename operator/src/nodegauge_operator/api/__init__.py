"""Typed custom resources: what a GPUValidationPolicy and a NodeReport hold.

The schemas in `crds/` are the source of truth for users and the API server; a test holds these types against
them field by field.  No I/O, no decisions.
"""
