"""A fleet of simulated machines, and what it goes through: `python -m fleet SCENARIO`.

Two back ends: virtual time (`virtual`, `process`: the API server in memory, the operator in this process, a
clock that jumps) for life and day; a real control plane (`real`: etcd, API server, scheduler, controllers,
the operator as a process) for faults, upgrade and load.
"""
