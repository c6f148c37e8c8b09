"""`make loadtest`: how quick, how chatty, how expensive and how large the operator is in mode Watch.

It runs the operator as a process of its own against a real API server, and beside it, in the same run, a loop
that makes the same writes through the same client and knows nothing.  Absolute numbers are of the machine it
ran on.  Nothing here decides whether a test passes.
"""
