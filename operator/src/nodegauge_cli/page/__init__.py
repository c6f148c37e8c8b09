"""The fleet as one HTML file that needs no network: `nodegauge report --html FILE`."""
