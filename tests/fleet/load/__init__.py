"""`make loadtest`: how quick, how chatty, how expensive and how large the operator is in mode Watch.

It runs the operator as a process of its own against a real API server, and before and after it a loop of
writes through the same client that knows nothing.  Absolute numbers are of the machine it ran on.  Nothing
here decides whether a test passes.
"""
