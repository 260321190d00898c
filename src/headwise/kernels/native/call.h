// One attention call as the kernel takes it: the C ABI between binding.py and the compiled code.
#pragma once
#include <cstddef>
#include <cstdint>

#include "moments.h"

namespace headwise {

enum Type : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
enum MaskKind : int32_t { kNoMask = 0, kBool = 1, kBias = 2 };
enum Outcome : int32_t { kDone = 0, kNotFinite = 1, kNoMemory = 2 };

// Planes of `statistics`, each [B, H, N]; the order of headwise.kernels.protocol.STATISTICS.
enum Statistic { kLse, kMaxScore, kEntropy, kLargest, kOwn, kPrevious, kNext, kFirst, kRest, kEntropyRest, kDistance, kIpr, kSink, kStatistics };

// Strides are in elements. Notation as in headwise.equations: B, H, N, M, d_k, d_v; G = H / H_kv.
struct Call {
  const void* q;  // [B, H, N, d_k]
  const void* k;  // [B, H_kv, M, d_k]
  const void* v;  // [B, H_kv, M, d_v], or null: statistics only
  void* out;      // [B, H, N, d_v] of the type of q, or null
  int64_t B, H, G, N, M, d_k, d_v;
  int64_t q_stride[4], k_stride[4], v_stride[4], out_stride[4];
  const void* mask;  // broadcast to [B, H, N, M] by strides of 0: uint8 (not 0 = may attend) or float32 (added)
  int64_t mask_stride[4];
  const float* sinks;    // [H], or null
  const int64_t* own;    // [b, N]: the own key, -1 where undefined
  const int64_t* first;  // [b, N]: the first key, -1 where there is none
  int64_t own_stride, first_stride;  // over b; 0 where all sequences share it
  // Row n sees keys n + offset - left .. n + offset + right; a negative side is unlimited.
  int64_t left, right, offset;
  float* statistics;  // [kStatistics, B, H, N]
  int64_t* argmax;    // [B, H, N]
  float scale, softcap, hide_below;  // softcap 0: none
  int32_t type, mask_kind, threads, level;  // level: 0 portable, 1 AVX2, 2 AVX-512
};

// One instruction set's form of the row loop.
struct Loop {
  int64_t (*rows)(const Call&);      // rows of one block
  size_t (*scratch)(const Call&);    // bytes that a thread needs
  // The rows r0.. of the query heads of (b, group); false if a query or bias is not finite, or huge.
  bool (*block)(const Call&, int64_t b, int64_t group, int64_t r0, char* scratch);
  bool (*finite)(const Call&, int64_t b, int64_t kv_head);  // whether all keys are, and none is huge
  // The sums of value `at / H` of head `at % H`; `scratch` holds N floats and a vector.
  void (*sums)(const Moments&, const Run* runs, size_t count, int64_t at, float* scratch);
};

// The loop of a level.
const Loop& loop_of(int32_t level);

// Query heads that one block may hold: the G of one key-value head where N is small, else one.
bool stacks_heads(const Call&);

}  // namespace headwise
