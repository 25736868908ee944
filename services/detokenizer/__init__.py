"""Turns folded tokens into text for whoever is attached."""
