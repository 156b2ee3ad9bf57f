"""From text to what a model reads: corpora, cleaning, dedup, the tokenizer, batches, the chat template."""
