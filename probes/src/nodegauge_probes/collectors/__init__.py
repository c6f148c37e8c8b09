"""What is read from the driver, one module per subject. A collector reads; it never judges."""
