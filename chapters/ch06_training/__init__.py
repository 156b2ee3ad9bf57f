"""Chapter 6: training, from AdamW by hand to checkpoints that resume bit for bit and processes that are one."""
