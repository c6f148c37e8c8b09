"""Readings from the host's kernel: PCI devices, RDMA ports, hwmon, the boot id, the clock, the control
group."""
