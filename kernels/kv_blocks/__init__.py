"""Whole blocks of the KV cache from place to place: copied within it, and swapped to and from the host's memory.

The cache of all layers is one tensor [P, N, ...]: P planes (the keys and the values of each layer), each of N blocks; a
block's part of a plane lies in one piece. Outside the cache blocks lie in a row, each with all its planes.
"""
