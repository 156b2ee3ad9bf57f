"""Chapter 9: from logits to a token, the KV cache and what it costs, and loops that go wrong."""
