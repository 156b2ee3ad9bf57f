"""HTTP: what OpenAI's clients send, what they get, and the pages."""
