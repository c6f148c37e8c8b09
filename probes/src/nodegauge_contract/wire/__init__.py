"""The termination message: a result document in at most 4,096 bytes, and back.

`codec` encodes and decodes, and drops members if a result does not fit.  `columns` and `cells` make
it small.
"""
