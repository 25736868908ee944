"""Operations of the model: one folder each, with a reference, a CPU path and, where there is one, CUDA."""
