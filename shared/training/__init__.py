"""Training: optimisers, the loop with its checkpoints, and the book's own model, from documentation to a folder."""
