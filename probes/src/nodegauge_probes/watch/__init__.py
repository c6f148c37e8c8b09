"""The watch probe: stays on a node, looks every second, and reports by ending when something has changed."""
