"""`make faults`: the operator on a real control plane that breaks under it, one fault after the other."""
