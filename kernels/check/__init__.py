"""`python -m kernels check`: does every CUDA kernel compile, compute what its reference does, and how fast.

A case is one operation at one shape (case.py). Each operation makes its own in kernels/<operation>/check.py, and
registers them with one line in cases.py.
"""
