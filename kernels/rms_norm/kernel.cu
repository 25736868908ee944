// RMSNorm of a row, by a block: x / sqrt(mean(x^2) + eps) * weight, in float32, rounded once.
//
// With an input the residual first takes it: residual += input. It is float32, as on the CPU: rounded to 16 bits after
// each layer it would carry most of the model's error. A row passes by twice; the second time it comes from the cache.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / 32;

// The sum over all threads of the block, for each of them.
static __device__ __forceinline__ float sum_of_block(float value) {
  __shared__ float of_warps[kNormWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kNormWarps; warp++) sum += of_warps[warp];
  return sum;
}

// A block a row. out: T [rows][n], residual: float [rows][n], input: T [rows][n] or null, weight: float [n]. n: a
// multiple of 8; all addresses: multiples of 16.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    rms_norm(T* out, float* residual, const T* input, const float* weight, int n, float eps) {
  constexpr int kStep = kNumbers<T>;  // of two 16-byte halves of floats
  static_assert(kStep == 8);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * n;
  float squares = 0.0f;
  for (int i = threadIdx.x * kStep; i < n; i += kNormThreads * kStep) {
    float4* at = reinterpret_cast<float4*>(residual + row + i);
    float4 first = at[0], second = at[1];
    if (input != nullptr) {
      float more[kStep];
      unpack_16<T>(load_16(input + row + i), more);
      first.x += more[0], first.y += more[1], first.z += more[2], first.w += more[3];
      second.x += more[4], second.y += more[5], second.z += more[6], second.w += more[7];
      at[0] = first, at[1] = second;
    }
    squares += first.x * first.x + first.y * first.y + first.z * first.z + first.w * first.w;
    squares += second.x * second.x + second.y * second.y + second.z * second.z + second.w * second.w;
  }
  const float scale = rsqrtf(sum_of_block(squares) / n + eps);
  for (int i = threadIdx.x * kStep; i < n; i += kNormThreads * kStep) {
    float values[kStep];
#pragma unroll
    for (int k = 0; k < kStep; k++) values[k] = residual[row + i + k] * scale * weight[i + k];
    *reinterpret_cast<uint4*>(out + row + i) = pack_16<T>(values);
  }
}

constexpr int kHeadNormThreads = 128;

// The same of each head's values, in place (Qwen3 normalises queries and keys so): a warp a head. heads: T, `stride`
// from token to token, num_heads of head_dim each; weight: float [head_dim]. Grid: tokens, num_heads / 4. head_dim: a
// multiple of 8, at most 256; addresses and stride * sizeof(T): multiples of 16.
template <class T>
__global__ void __launch_bounds__(kHeadNormThreads)
    rms_norm_heads(T* heads, const float* weight, int num_heads, int head_dim, int64_t stride, float eps) {
  constexpr int kStep = kNumbers<T>;
  const int lane = threadIdx.x % 32, head = blockIdx.y * (kHeadNormThreads / 32) + threadIdx.x / 32, i = lane * kStep;
  if (head >= num_heads) return;
  T* at = heads + blockIdx.x * stride + static_cast<int64_t>(head) * head_dim + i;
  float values[kStep] = {}, squares = 0.0f;
  if (i < head_dim) unpack_16<T>(*reinterpret_cast<const uint4*>(at), values);
#pragma unroll
  for (int k = 0; k < kStep; k++) squares += values[k] * values[k];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
  if (i >= head_dim) return;
  const float scale = rsqrtf(squares / head_dim + eps);
#pragma unroll
  for (int k = 0; k < kStep; k++) values[k] *= scale * weight[i + k];
  *reinterpret_cast<uint4*>(at) = pack_16<T>(values);
}

}  // namespace tokenbus
