"""Chapter 2: reading, cleaning, filtering and splitting a corpus."""
