"""A fleet of simulated machines: `python -m fleet SCENARIO`.  Life and day run in virtual time (`virtual`,
`process`); faults, upgrade and load on a real control plane (`real`)."""
