// The two matrix products of a tile, by register tiles of R keys (or values' columns) x C vectors of rows.
#pragma once
#include "vectors.h"

namespace HW_LEVEL {

// S[key][.] = sum over d of q[d][.] * k[key][d], for R keys at once, the running maximum of them, and for each row the
// last `number` whose keys raised it.
template <int R, int C>
HW_INLINE void score_rows(const float* q, int64_t d_k, const float* k, int64_t k_stride, float* S, Vec* top, int number, IVec* raised) {
  constexpr int P = C * W;
  Vec sum[R][C];
  const float* key[R];
  for (int r = 0; r < R; r++) {
    key[r] = k + r * k_stride;
    for (int c = 0; c < C; c++) sum[r][c] = Vec{};
  }
  for (int64_t d = 0; d < d_k; d++, q += P) {
    Vec query[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) query[c] = *(const Vec*)(q + c * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const float x = key[r][d];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) sum[r][c] += query[c] * x;
    }
  }
  for (int c = 0; c < C; c++) {
    Vec m = sum[0][c];
    for (int r = 0; r < R; r++) {
      m = vmax(m, sum[r][c]);
      *(Vec*)(S + r * P + c * W) = sum[r][c];
    }
    raised[c] = m > top[c] ? isplat(number) : raised[c];
    top[c] = vmax(m, top[c]);
  }
}

// out[d][.] = alpha * out[d][.] + sum over keys of S[key][.] * v[key][d], for R values of d at once.
template <int R, int C>
HW_INLINE void value_columns(const float* S, int keys, const float* v, int64_t v_stride, float* out, const Vec* alpha) {
  constexpr int P = C * W;
  Vec sum[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sum[r][c] = *(Vec*)(out + r * P + c * W) * alpha[c];
  for (int j = 0; j < keys; j++, S += P, v += v_stride) {
    Vec weight[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) weight[c] = *(const Vec*)(S + c * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const float x = v[r];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) sum[r][c] += weight[c] * x;
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) *(Vec*)(out + r * P + c * W) = sum[r][c];
}

// The remainder that is no multiple of the register tile.
template <int R, int C>
struct Rest {
  static void score(int rows, const float* q, int64_t d_k, const float* k, int64_t k_stride, float* S, Vec* top, int number, IVec* raised) {
    if (rows == R) score_rows<R, C>(q, d_k, k, k_stride, S, top, number, raised);
    else Rest<R - 1, C>::score(rows, q, d_k, k, k_stride, S, top, number, raised);
  }
  static void value(int rows, const float* S, int keys, const float* v, int64_t v_stride, float* out, const Vec* alpha) {
    if (rows == R) value_columns<R, C>(S, keys, v, v_stride, out, alpha);
    else Rest<R - 1, C>::value(rows, S, keys, v, v_stride, out, alpha);
  }
};
template <int C>
struct Rest<0, C> {
  static void score(int, const float*, int64_t, const float*, int64_t, float*, Vec*, int, IVec*) {}
  static void value(int, const float*, int, const float*, int64_t, float*, const Vec*) {}
};

}  // namespace HW_LEVEL
