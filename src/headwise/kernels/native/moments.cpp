// The sums of row measures that a profile adds up, in one pass: see headwise.measures.summary.Part.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "export.h"
#include "parallel.h"

namespace headwise {

struct Moments {
  const float* values;      // [K, B, H, N]: NaN where a measure is undefined
  const uint8_t* counted;   // [B, H, N]: rows that count
  const int64_t* bins;      // [b, N], 0 .. P - 1
  const int64_t* segments;  // [b, N], 0 .. S - 1; null: S = 1
  int64_t K, B, H, N, P, S, bins_stride, segments_stride;       // strides over b
  double *rows, *mean, *m2, *low, *high;                        // [K, H]
  double *cluster_sum, *cluster_rows, *bin_sum, *bin_rows;      // [K, H, B * S], [K, H, P]: zeros
  int64_t threads;
};

namespace {

struct Work {
  const Moments& m;
  std::atomic<int64_t> next{0};
};

// One measure of one head.
void one(const Moments& m, int64_t at) {
  const int64_t k = at / m.H, h = at % m.H;
  double *cluster_sum = m.cluster_sum + at * m.B * m.S, *cluster_rows = m.cluster_rows + at * m.B * m.S;
  double *bin_sum = m.bin_sum + at * m.P, *bin_rows = m.bin_rows + at * m.P;
  float low = std::numeric_limits<float>::infinity(), high = -low;
  double rows = 0, sum = 0;
  for (int64_t b = 0; b < m.B; b++) {
    const float* value = m.values + ((k * m.B + b) * m.H + h) * m.N;
    const uint8_t* counted = m.counted + (b * m.H + h) * m.N;
    const int64_t *bin = m.bins + b * m.bins_stride, *segment = m.segments ? m.segments + b * m.segments_stride : nullptr;
    for (int64_t n = 0; n < m.N; n++) {
      const float x = value[n];
      if (!counted[n] || std::isnan(x)) continue;
      const int64_t c = b * m.S + (segment ? segment[n] : 0);
      cluster_sum[c] += x, cluster_rows[c] += 1;
      bin_sum[bin[n]] += x, bin_rows[bin[n]] += 1;
      low = x < low ? x : low, high = x > high ? x : high;
    }
    for (int64_t c = b * m.S; c < (b + 1) * m.S; c++) sum += cluster_sum[c], rows += cluster_rows[c];
  }
  const double mean = rows > 0 ? sum / rows : 0;
  double m2 = 0;
  for (int64_t b = 0; b < m.B; b++) {
    const float* value = m.values + ((k * m.B + b) * m.H + h) * m.N;
    const uint8_t* counted = m.counted + (b * m.H + h) * m.N;
    for (int64_t n = 0; n < m.N; n++) {
      const double away = value[n] - mean;
      m2 += counted[n] && !std::isnan(value[n]) ? away * away : 0.;
    }
  }
  m.rows[at] = rows, m.mean[at] = mean, m.m2[at] = m2, m.low[at] = low, m.high[at] = high;
}

void run(void* data) {
  Work& work = *(Work*)data;
  for (int64_t i; (i = work.next++) < work.m.K * work.m.H;) one(work.m, i);
}

}  // namespace
}  // namespace headwise

HW_EXPORT void headwise_moments(const headwise::Moments* moments) {
  headwise::Work work{*moments};
  const bool small = (double)moments->K * moments->B * moments->H * moments->N < 1e5;
  headwise::run_on_threads(headwise::run, &work, small ? 1 : moments->threads);
}
