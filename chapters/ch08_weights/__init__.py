"""Chapter 8: weights in files and in memory, quantised by hand, and the int8 model."""
