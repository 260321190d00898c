// The sums of row measures that a profile adds up: see headwise.measures.summary.Part.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headwise {

// The C ABI of moments.py.
struct Moments {
  const float* values;      // [K, B, H, N]: NaN where a measure is undefined or the row does not count
  const int64_t* bins;      // [b, N], 0 .. P - 1
  const int64_t* segments;  // [b, N], 0 .. S - 1; null: S = 1
  int64_t K, B, H, N, P, S, bins_stride, segments_stride;   // strides over b
  double *rows, *mean, *m2, *low, *high;                    // [K, H]
  double *cluster_sum, *cluster_rows, *bin_sum, *bin_rows;  // [K, H, B * S], [K, H, P]: zeros
  int64_t threads;
  int32_t level;  // as Call::level
};

// Rows of one sequence and one position bin that lie together.
struct Run {
  int64_t b, from, to, bin, cluster;
};

}  // namespace headwise
