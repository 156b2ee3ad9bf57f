"""The model: its layers, its weights on disk, and how it is fetched."""
