// The sums of one value of one head, by vectors: compiled with rows.cpp for each instruction set.
#pragma once
#include "moments.h"
#include "vectors.h"

namespace HW_LEVEL {

HW_INLINE double sum_of(Half x) {
  double part[W / 2];
  memcpy(part, &x, sizeof part);
  for (int step = W / 4; step; step /= 2)
    for (int i = 0; i < step; i++) part[i] += part[i + step];
  return part[0];
}

// The first `number` of W numbers; zeros beyond.
HW_INLINE Vec loaded(const float* from, int number) {
  if (number == W) return *(const LooseVec*)from;
  Vec x = Vec{};
  memcpy(&x, from, sizeof(float) * number);
  return x;
}
HW_INLINE IVec loaded(const uint8_t* from, int number) {
  if (number == W) return from_bytes(from) != 0;
  uint8_t bytes[W] = {};
  memcpy(bytes, from, number);
  return from_bytes(bytes) != 0;
}

// The numbers of the rows of one head of one batch row, NaN where a row does not count or the value is undefined.
static void evaluate(const headwise::Moments& m, const headwise::Value& value, int64_t b, int64_t h, float* to) {
  const int64_t start = (b * m.H + h) * m.N;
  const auto at = [&](auto* from, const int64_t* stride) { return from ? from + b * stride[0] + h * stride[1] : nullptr; };
  const auto *factor = at(value.factor, value.factor_stride), *divisor = at(value.divisor, value.divisor_stride);
  const auto* defined = at(value.defined, value.defined_stride);
  for (int64_t n = 0; n < m.N; n += W) {
    const int number = (int)(m.N - n < W ? m.N - n : W);
    Vec x = loaded(value.statistic + start + n, number);
    IVec kept = loaded(m.counted + start + n, number);
    if (factor) x *= loaded(factor + n, number);
    if (divisor) x /= loaded(divisor + n, number);
    if (defined) kept &= loaded(defined + n, number);
    *(LooseVec*)(to + n) = kept ? x : splat(NAN);
  }
}

static void sums(const headwise::Moments& m, const headwise::Run* runs, size_t count, int64_t at, float* scratch) {
  const headwise::Value& value = m.values[at / m.H];
  double *cluster_sum = m.cluster_sum + at * m.B * m.S, *cluster_rows = m.cluster_rows + at * m.B * m.S;
  double *bin_sum = m.bin_sum + at * m.P, *bin_rows = m.bin_rows + at * m.P;
  Vec lows = splat(kInfinity), highs = splat(-kInfinity);
  double rows = 0, mean = 0, m2 = 0;
  const headwise::Run *run = runs, *const end = runs + count;
  for (int64_t b = 0; value.statistic && b < m.B; b++) {
    evaluate(m, value, b, at % m.H, scratch);
    double rows_here = 0, sum_here = 0;
    for (; run < end && run->b == b; run++) {
      Half sums = Half{}, more = Half{};
      int64_t number = 0;
      for (int64_t n = run->from; n < run->to; n += W) {
        // Vectors overlap the next run, whose rows are left out here.
        Vec x = *(const LooseVec*)(scratch + n);
        if (run->to - n < W) x = lanes() < (int32_t)(run->to - n) ? x : splat(NAN);
        const IVec defined = x == x;
        const Vec kept = defined ? x : Vec{};
        sums += low_half(kept), more += high_half(kept);
        number += __builtin_popcount(bits_of(defined));
        lows = x < lows ? x : lows;
        highs = x > highs ? x : highs;
      }
      const double sum = sum_of(sums + more);
      cluster_sum[run->cluster] += sum, cluster_rows[run->cluster] += (double)number;
      bin_sum[run->bin] += sum, bin_rows[run->bin] += (double)number;
      sum_here += sum, rows_here += (double)number;
    }
    if (rows_here == 0) continue;
    const double mean_here = sum_here / rows_here;
    Half squares = Half{}, more = Half{};
    for (int64_t n = 0; n < m.N; n += W) {
      Vec x = *(const LooseVec*)(scratch + n);
      if (m.N - n < W) x = lanes() < (int32_t)(m.N - n) ? x : splat(NAN);
      const Half low = low_half(x) - mean_here, high = high_half(x) - mean_here;
      squares += low == low ? low * low : Half{}, more += high == high ? high * high : Half{};
    }
    // Sums about two means, added (Chan, Golub and LeVeque 1979, eq. 2.1).
    const double apart = mean_here - mean, all = rows + rows_here;
    m2 += sum_of(squares + more) + apart * apart * rows * rows_here / all;
    mean += apart * rows_here / all;
    rows = all;
  }
  float low = kInfinity, high = -kInfinity;
  for (int i = 0; i < W; i++) low = lows[i] < low ? lows[i] : low, high = highs[i] > high ? highs[i] : high;
  m.rows[at] = rows, m.mean[at] = mean, m.m2[at] = m2, m.low[at] = low, m.high[at] = high;
}

}  // namespace HW_LEVEL
