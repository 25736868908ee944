"""The CPU kernels in C++: how they are built, which instructions they may use, and the few headers they share.

g++ makes one shared library of all kernels/*/*.cpp at first use, once for each machine and instruction level, in the
user's cache folder. Without g++, or on a processor without AVX2, load_library() says so and the engine computes with
torch.
"""
