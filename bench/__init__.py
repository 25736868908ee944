"""Measurements of Tokenbus; each prints what it measured and can write it to bench/results."""
