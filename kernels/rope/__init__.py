"""Rotary position embedding (Su et al., "RoFormer", 2021), in the half-split layout of Hugging Face checkpoints.

Each pair (x[i], x[i + D/2]) of a head is turned by the angle position * inv_freq[i]. frequencies.py makes inv_freq,
with the scalings that stretch a model's context.
"""
