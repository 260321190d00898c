// The sums of one measure of one head, by vectors: compiled with rows.cpp for each instruction set.
#pragma once
#include "moments.h"
#include "vectors.h"

namespace HW_LEVEL {

HW_INLINE double sum_of(Half x) {
  double sum = 0;
  for (int i = 0; i < W / 2; i++) sum += x[i];
  return sum;
}

// The numbers of W rows, NaN where a row does not count.
HW_INLINE Vec counted_of(const float* value, const uint8_t* counted) {
  const Vec x = *(const LooseVec*)value;
  return !counted || from_bytes(counted) != 0 ? x : splat(NAN);
}

static void sums(const headwise::Moments& m, const headwise::Run* runs, size_t count, int64_t at) {
  const int64_t k = at / m.H, h = at % m.H;
  const auto start = [&](int64_t b) { return (b * m.H + h) * m.N; };
  double *cluster_sum = m.cluster_sum + at * m.B * m.S, *cluster_rows = m.cluster_rows + at * m.B * m.S;
  double *bin_sum = m.bin_sum + at * m.P, *bin_rows = m.bin_rows + at * m.P;
  Vec lows = splat(kInfinity), highs = splat(-kInfinity);
  float low = kInfinity, high = -kInfinity;
  double rows = 0, total = 0;
  for (size_t r = 0; r < count; r++) {
    const headwise::Run& run = runs[r];
    const float* value = m.values[k] + start(run.b);
    const uint8_t* counted = m.counted ? m.counted + start(run.b) : nullptr;
    Half sums = Half{}, more = Half{};
    IVec numbers = IVec{};
    int64_t n = run.from;
    for (; n + W <= run.to; n += W) {
      const Vec x = counted_of(value + n, counted ? counted + n : nullptr);
      const IVec defined = x == x;
      const Vec kept = defined ? x : Vec{};
      sums += low_half(kept), more += high_half(kept);
      numbers -= defined;
      lows = x < lows ? x : lows;
      highs = x > highs ? x : highs;
    }
    double sum = sum_of(sums + more), number = 0;
    for (int i = 0; i < W; i++) number += numbers[i];
    for (; n < run.to; n++) {
      const float x = value[n];
      if (x != x || (counted && !counted[n])) continue;
      sum += x, number += 1;
      low = x < low ? x : low, high = x > high ? x : high;
    }
    cluster_sum[run.cluster] += sum, cluster_rows[run.cluster] += number;
    bin_sum[run.bin] += sum, bin_rows[run.bin] += number;
    total += sum, rows += number;
  }
  const double mean = rows > 0 ? total / rows : 0;
  Half squares = Half{}, more = Half{};
  double square = 0;
  for (int64_t b = 0; b < m.B; b++) {
    const float* value = m.values[k] + start(b);
    const uint8_t* counted = m.counted ? m.counted + start(b) : nullptr;
    int64_t n = 0;
    for (; n + W <= m.N; n += W) {
      const Vec x = counted_of(value + n, counted ? counted + n : nullptr);
      const Half low = low_half(x) - mean, high = high_half(x) - mean;
      squares += low == low ? low * low : Half{}, more += high == high ? high * high : Half{};
    }
    for (; n < m.N; n++)
      if (value[n] == value[n] && !(counted && !counted[n])) square += (value[n] - mean) * (value[n] - mean);
  }
  for (int i = 0; i < W; i++) low = lows[i] < low ? lows[i] : low, high = highs[i] > high ? highs[i] : high;
  m.rows[at] = rows, m.mean[at] = mean, m.m2[at] = square + sum_of(squares + more), m.low[at] = low, m.high[at] = high;
}

}  // namespace HW_LEVEL
