"""Attention of a step's queries over the paged KV cache: decode and chunked prefill of mixed lengths in one call.

A step holds S sequences; sequence s brings queries cu_seqlens_q[s] to cu_seqlens_q[s + 1] (its newest tokens) and has
context_lens[s] tokens in the cache, those queries' among them. A query at position p sees the positions j <= p, with a
sliding window only those with j > p - window. H query heads share K key/value heads in groups of H / K neighbours
(Ainslie et al., "GQA", 2023). Slots beyond a sequence's context are never read: they may hold anything, NaN included.

Later devices implement the same interface; a layout of their own is allowed, since the cache is theirs alone.
"""
