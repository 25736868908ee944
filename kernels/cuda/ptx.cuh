// The only file with PTX: copies to shared memory that go on by themselves, matrices of the tensor cores.
//
// The emulator of the tests (tests/kernels/emulator/matrix.h) offers the same functions.
#pragma once
#ifndef SIMT_EMULATOR
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// A block's dynamic shared memory as T* name.
#define SHARED_MEMORY(T, name)                                   \
  extern __shared__ __align__(16) unsigned char name##_bytes[]; \
  T* name = reinterpret_cast<T*>(name##_bytes)

namespace tokenbus {

static __device__ __forceinline__ uint32_t shared_address(const void* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

// Begins to copy 16 bytes; zeros if they are not there, and then global is not read.
static __device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(is_there ? 16 : 0)
               : "memory");
}

// What this thread has begun to copy since the last time is a group.
static __device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all of this thread's groups but the newest kPending have arrived.
template <int kPending>
static __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers; lanes 8 i to 8 i + 7 give the rows of matrix i, 16 bytes each. Lane l gets
// numbers 2 (l % 4) and the next of row l / 4.
static __device__ __forceinline__ void ldmatrix_4(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same of the matrices transposed.
static __device__ __forceinline__ void ldmatrix_4_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

#define TOKENBUS_MMA(type)                                                                                        \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
               "{%8, %9}, {%0, %1, %2, %3};"                                                                      \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// sums += a * b, by a warp: a is 16 x 16, b 16 x 8, in the fragments of mma.m16n8k16. T: __nv_bfloat16 or __half.
template <class T>
static __device__ __forceinline__ void mma_16x8x16(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                                           uint32_t b1) {
  TOKENBUS_MMA("bf16");
}

template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  TOKENBUS_MMA("f16");
}

#undef TOKENBUS_MMA

// 2^x to 2 units in the last place; results below the normal numbers are 0.
static __device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16 bytes that no kernel writes meanwhile.
static __device__ __forceinline__ uint4 load_16(const void* from) { return __ldg(static_cast<const uint4*>(from)); }

}  // namespace tokenbus
#endif
