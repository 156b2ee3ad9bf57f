"""Measuring a model: perplexity, a regression set, a gate for candidates, and the causes of what fails."""
