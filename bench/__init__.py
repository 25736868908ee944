"""Measurements of Tokenbus; each prints what it measured, and most can write it as JSON."""
