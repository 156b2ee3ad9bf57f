"""Chapter 0: the most naive generation there is, served, and measured."""
