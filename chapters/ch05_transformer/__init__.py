"""Chapter 5: the transformer, layer by layer, until it computes what the real model computes."""
