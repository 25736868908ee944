"""A whole engine step in one call: every layer of a decoder, from token ids to sampled logits, on a team of threads."""
