"""`make day`: the same day of a fleet in virtual time, once read by pods and once watched by containers."""
