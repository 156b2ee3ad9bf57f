"""Chapter 14: the service: limits, deadlines, keys, draining, supervision, going on after a crash, and routing."""
