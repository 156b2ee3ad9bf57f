"""Measuring: the naive baseline, traces, load, summaries, the scoreboard. A leaf: it imports no other layer."""
