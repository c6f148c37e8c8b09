"""Readings from the driver, one module per subject. A collector reads and never judges."""
