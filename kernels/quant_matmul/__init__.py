"""Products with quantised weights: 4 bits in groups, int8 or fp8; activations and results in 16 bits.

Weights enter the tensor cores as the numbers that they are stored as, which bfloat16 and float16 hold exactly (a code
less its zero, an int8, an e4m3); scales multiply the float32 sums. So the only rounding is that of the sums and of the
result. layout.py has the one layout into which AWQ's and GPTQ's are brought when a model is loaded.
"""
