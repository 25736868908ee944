"""The gate of a SwiGLU feed-forward layer: silu(gate) * up (Shazeer, "GLU Variants Improve Transformer", 2020)."""
