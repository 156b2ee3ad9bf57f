"""From a model and a prompt to text: sampling, the KV cache, the loop, the detokenizer and the engine around them."""
