"""Chapter 12: the scheduler of continuous batching, the sampler, and speculative decoding by look-up."""
