"""Models on disk: versioned folders with checksums, read from safetensors and GGUF."""
