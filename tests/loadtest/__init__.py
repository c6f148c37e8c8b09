"""`make loadtest`: how fast, how quick, how chatty and how large the operator is, beside a bare loop.

It runs the operator as a process of its own against a real API server, and compares it, in the same run, with
loops that make the same number of writes through the same client and know nothing.  The ratios are the
message: absolute numbers are of the machine it ran on.  Nothing here decides whether a test passes.
"""
