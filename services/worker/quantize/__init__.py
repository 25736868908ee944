"""`tokenbus model quantize`: a model's projections to 4 or 8 bits, calibrated on a text, layer by layer in torch."""
