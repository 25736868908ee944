"""Owns one device: weights, KV memory, engine steps, sampling."""
