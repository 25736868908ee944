"""Decides which worker computes which tokens in which step."""
