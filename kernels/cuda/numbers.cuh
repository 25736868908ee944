// Numbers of all widths as floats and back; 16 bytes of them at a time.
#pragma once
#include "kernels/cuda/ptx.cuh"

namespace tokenbus {

template <class T>
static __device__ __forceinline__ float to_float(T value);
template <>
__device__ __forceinline__ float to_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ float to_float<__nv_bfloat16>(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <>
__device__ __forceinline__ float to_float<__half>(__half value) {
  return __half2float(value);
}
template <>
__device__ __forceinline__ float to_float<__nv_fp8_e4m3>(__nv_fp8_e4m3 value) {
  return static_cast<float>(value);
}

// Rounded to nearest, ties to even; fp8 saturates at 448.
template <class T>
static __device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16(value);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half(value);
}
template <>
__device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float value) {
  return __nv_fp8_e4m3(value);
}

// Numbers in the 16 bytes that a thread reads or writes at once.
template <class T>
constexpr int kNumbers = 16 / static_cast<int>(sizeof(T));

template <class T>
static __device__ __forceinline__ void unpack_16(const uint4& bytes, float (&values)[kNumbers<T>]) {
  T packed[kNumbers<T>];
  memcpy(packed, &bytes, sizeof bytes);
#pragma unroll
  for (int i = 0; i < kNumbers<T>; i++) values[i] = to_float<T>(packed[i]);
}

template <class T>
static __device__ __forceinline__ uint4 pack_16(const float (&values)[kNumbers<T>]) {
  T packed[kNumbers<T>];
#pragma unroll
  for (int i = 0; i < kNumbers<T>; i++) packed[i] = from_float<T>(values[i]);
  uint4 bytes;
  memcpy(&bytes, packed, sizeof bytes);
  return bytes;
}

// Two 16-bit numbers as a fragment holds them: the first in the low half.
template <class T>
static __device__ __forceinline__ uint32_t pack_two(float first, float second) {
  const T packed[2] = {from_float<T>(first), from_float<T>(second)};
  uint32_t bits;
  memcpy(&bits, packed, sizeof bits);
  return bits;
}

}  // namespace tokenbus
