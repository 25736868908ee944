// Every conversion of numbers.cuh, and the fast mathematics that kernels use.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

template <class T>
__global__ void narrowed(T* out, const float* values, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = from_float<T>(values[i]);
}

template <class T>
__global__ void widened(float* out, const T* values, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = to_float<T>(values[i]);
}

// 16 bytes to floats and back. out: [numbers]; again: [16 bytes].
template <class T>
__global__ void unpacked(float* out, T* again, const T* values) {
  float numbers[kNumbers<T>];
  unpack_16<T>(load_16(values), numbers);
  for (int i = 0; i < kNumbers<T>; i++) out[i] = numbers[i];
  *reinterpret_cast<uint4*>(again) = pack_16<T>(numbers);
}

template <class T>
__global__ void two_packed(uint32_t* out, float first, float second) {
  *out = pack_two<T>(first, second);
}

// out: [5][count].
__global__ void fast_mathematics(float* out, const float* values, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const float x = values[i];
    out[i] = exp2_fast(x);
    out[count + i] = __expf(x);
    out[2 * count + i] = __logf(x);
    out[3 * count + i] = rsqrtf(x);
    out[4 * count + i] = __fdividef(1.0f, x);
  }
}

}  // namespace tokenbus
