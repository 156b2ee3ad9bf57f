"""The HTTP server: OpenAI's chat API over the engine, and a chat page."""
