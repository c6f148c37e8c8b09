"""Reads a server's BMC over the network: supplies, rails, fans, inlet air, leaks, and the GPUs it sees.

`protocols` chooses by the address.  Redfish: `connection` speaks HTTPS and keeps credentials to itself,
`redfish` walks a BMC's resources, `power`, `cooling` and `board_gpus` turn them into the contract's
`ChassisReading`; `refusals` says why a BMC does not give one.  IPMI: `rmcp` has the packets, `lan` the
session, `repository` and `sdr` what the BMC stores; `sensors` and `ipmi_supplies` turn sensors into the same
document, `ipmi` reads them.  `values` refuses numbers that cannot be true.  `inventory` has the entries of
many BMCs, and `pins` writes fingerprints into them.  Nothing here judges: that is `nodegauge_judge.chassis`.
"""
