"""Chapter 1: a neural network by hand, in NumPy: forward, backward, losses, optimisers, schedule, training loop."""
