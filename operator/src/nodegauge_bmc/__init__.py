"""Reads a server's BMC over the network: supplies, rails, fans, inlet air, leaks, and the GPUs it sees.

`connection` speaks HTTPS and keeps credentials to itself; `redfish` walks a BMC's resources; `values` refuses
numbers that cannot be true; `power`, `cooling` and `boards` turn resources into the contract's
`ChassisReading`.  Nothing here judges: that is `nodegauge_judge.chassis`.
"""
