"""Chapter 11: batches, windows and queues."""
