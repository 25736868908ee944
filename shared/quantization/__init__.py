"""Quantised weights: how files of Hugging Face's ecosystem hold them, and what they mean."""
