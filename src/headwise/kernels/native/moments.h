// The sums and counts of rows that a profile adds up: see headwise.measures.summary.Part.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headwise {

// The C ABI of moments.py, as what follows. A number per row: statistic * factor / divisor where it is defined.
struct Value {
  const float* statistic;          // [B, H, N]; null: it is defined nowhere
  const uint8_t* defined;          // [b, h, N]; null: everywhere
  const float *factor, *divisor;   // [b, h, N], or null
  int64_t defined_stride[2], factor_stride[2], divisor_stride[2];  // over b and h
};

struct Moments {
  const Value* values;      // K
  const uint8_t* counted;   // [B, H, N]: rows that count
  const int64_t* bins;      // [b, N], 0 .. P - 1
  const int64_t* segments;  // [b, N], 0 .. S - 1; null: S = 1
  int64_t K, B, H, N, P, S, bins_stride, segments_stride;   // strides over b
  double *rows, *mean, *m2, *low, *high;                    // [K, H]
  double *cluster_sum, *cluster_rows, *bin_sum, *bin_rows;  // [K, H, B * S], [K, H, P]: zeros
  int64_t threads;
  int32_t level;  // as Call::level
};

// The C ABI of tally.py. Strides are over b, h and n; b and h may be 1 or all, and have a stride of 0 where they are 1.
struct Tally {
  const int64_t* argmax;     // [B, H, N]
  const float *max_score, *lse;  // [B, H, N]
  const int64_t* visible;    // keys that a row sees
  const int64_t* own;        // [b, N]; -1 where unknown
  const uint8_t *real, *only;  // [b, N]; only: rows to look at, null: all
  int64_t B, H, N, visible_stride[3], own_stride[2], real_stride[2], only_stride[2];
  int64_t first_offset, offsets;  // of own - argmax, offset by offset; then all others
  double *counts, *histogram;     // [4, H]: counted, masked, padded, not finite; [H, offsets + 1]: zeros
  uint8_t* counted;               // [B, H, N]
  int64_t threads;
};

// Rows of one sequence and one position bin that lie together.
struct Run {
  int64_t b, from, to, bin, cluster;
};

}  // namespace headwise
