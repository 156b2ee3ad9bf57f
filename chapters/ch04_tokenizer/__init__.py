"""Chapter 4: a byte-level BPE tokenizer by hand, a cache in front of it, and batches of unequal texts."""
