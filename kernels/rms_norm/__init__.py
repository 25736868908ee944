"""Root mean square normalisation, alone or fused with the residual addition before it.

y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019), over the
last dimension, computed in float32 and rounded once. Weights and residual are float32 whatever the model's dtype.
"""
