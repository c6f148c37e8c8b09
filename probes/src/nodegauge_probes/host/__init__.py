"""What is read from the host's kernel: sysfs, hwmon, RDMA ports, the PCI bus, the boot id and its clock."""
