// CUDA's words as C++ for the processor: qualifiers, built-in variables, barriers. Types and their conversions come
// from NVIDIA's own headers, which work on a host.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_types.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#undef __align__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local  // which Block::poison finds
#define __constant__ static
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

#include "tests/kernels/emulator/scheduling.h"

#define threadIdx (emulator::block->running->thread)
#define blockIdx (emulator::block->index)
#define blockDim (emulator::block->threads)
#define gridDim (emulator::block->grid)
#define warpSize 32

static inline void __syncthreads(const emulator::Place& place = emulator::Place::current()) {
  emulator::block->meet(0, 0, place);
}
static inline void __threadfence() {}  // one thread runs at a time
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
