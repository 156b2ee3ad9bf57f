"""Text on its way to the model: tokens, and the chat template."""
