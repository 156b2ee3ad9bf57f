"""Chapter 3: exact and near duplicates."""
