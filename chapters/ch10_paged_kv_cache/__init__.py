"""Chapter 10: the KV cache in blocks, shared between requests, and attention over it."""
