"""The operations of a forward pass and of sampling, one folder each, with the same files.

reference.py: slow, obvious float32 NumPy; the definition of correct.
cpu.py: the same in torch, for float32 and wherever the C++ cannot be.
*.h, *.cpp: the same in C++, which decoder/ joins to whole steps; native/ builds and loads it.
kernel.cu, cuda.py: the same for a device, and what launches it; cuda/ compiles and loads it.
check.py: cases for `python -m kernels check`, which compares the device's results with the reference.

Shapes are written with T tokens of a step, S sequences, H query heads, K key/value heads, D values a head, N KV
blocks of B tokens. The KV cache of a layer is two tensors [N, B, K, D]; token p of a sequence lies in slot
`block_table[p // B] * B + p % B`, and a slot mapping of -1 means "do not write". Nothing here imports our packages.
"""
