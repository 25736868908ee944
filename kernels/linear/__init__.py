"""Products of a few to some hundred rows with a weight matrix: every projection of the model.

y = x W^T + bias for x [M, n_in] and W [n_out, n_in]. On the CPU the weights are packed once into panels of 32 output
columns; a task is one panel for a range of rows, and what becomes of its sums (rounding, adding to the residual, SiLU,
the likeliest token) is decided by the caller, while they are still in registers.
"""
