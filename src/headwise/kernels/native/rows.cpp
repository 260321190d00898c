// The row loop, compiled once for each instruction set: -DHW_LEVEL=avx512 -DW=16 and so on.
//
// A block of rows (queries) is laid out with lanes = rows: q transposed to [d_k][P] panels of P rows, scores as S^T
// tiles [keys][P]. Every maximum, sum and statistic then runs down a vector's own lanes, and k and v are read as they
// lie, one number at a time, broadcast. For each tile of keys:
//
//   1. S = scale k q, the tile's maximum taken as it is made;
//   2. softcap, mask and causal or window limits, where the tile needs them: hidden is -inf;
//   3. scores of the own, previous, next and first key picked out; the first key is set aside;
//   4. weights exp(S - m) relative to the running maximum m, and their sums;
//   5. out = alpha out + weights v (if v is given).
//
// Sums leave the first key out (a sink that holds nearly all the weight must not drown the rest); it is added at the
// end. See docs/measures.md for the statistics.
#include "call.h"
#include "products.h"
#include "sums.h"
#include "vectors.h"

namespace HW_LEVEL {

using headwise::Call;

constexpr int kKeys = 96;      // keys of a tile: S stays in the first-level cache
constexpr int kBlock = 64;     // rows of a block
constexpr int kMost = 256;     // where there are many: k and v, which come from far in a long text, serve more of them

// Beyond this a float tells weights of neighbouring scores no longer apart, and their squares overflow. Queries and keys
// that could give larger scores, larger biases, infinite ones and NaN are for another kernel.
constexpr float kLargeScore = 1e8f;

// The largest number of a query (times scale) or a key for which no score can be too large.
static float largest(const Call& a) { return sqrtf(kLargeScore / (float)a.d_k); }

constexpr size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// What is known of the rows of a block; lanes beyond the last row repeat it, with a query of 0.
struct Rows {
  int count;
  int64_t head[kMost], n[kMost], low[kMost], high[kMost], own[kMost], first[kMost];
};

// The smallest and the largest of a panel's rows, so that most tiles need not look at each row.
struct Range {
  int64_t least = INT64_MAX, most = INT64_MIN;
  void take(int64_t x) {
    least = x < least ? x : least;
    most = x > most ? x : most;
  }
};
struct Ranges {
  Range low, high, own, first;
};

// Sums of P rows without the first key. Weights are 2^(s log2(e) - shift), shift = the running maximum times log2(e) as
// a float: the product inside is not rounded (a fused multiply-add), so that large scores that lie close keep their
// differences, and shift's own rounding is the same for all weights of a row. Moments are in units of ln 2.
template <int C>
struct Sums {
  Vec top[C], shift[C], mass[C], moment[C], squares[C], travelled[C];
  Vec own[C], previous[C], next[C], first[C];  // scores; -inf where not seen
  Vec argmax[C];                               // exact: keys are fewer than 2^24
};

template <int C>
class Block {
  static constexpr int P = C * W, R = HW_REGISTERS / C;

 public:
  static size_t scratch(const Call& a) {
    const size_t converted = rounded(sizeof(float) * kKeys * (a.d_k + a.d_v));
    return rounded(sizeof(Sums<C>) * rows(a) / P) + rounded(sizeof(float) * rows(a) * (a.d_k + a.d_v)) +
           rounded(sizeof(float) * kKeys * P) + converted;
  }
  // A multiple of P.
  static int rows(const Call& a) {
    if (C == 1) return P;
    // Large blocks, unless threads would be left without one.
    return a.B * a.H * (a.N / kMost) >= 4 * a.threads ? kMost : kBlock;
  }

  static bool run(const Call& a, int64_t b, int64_t group, int64_t r0, char* scratch) {
    Block block(a, b, scratch);
    if (!block.gather(group, r0)) return false;
    block.attend();
    if (any(block.odd)) return false;
    block.write();
    return true;
  }

 private:
  const Call& a;
  const int64_t b;
  const int rows_of_block;
  int64_t kv_head = 0;
  Rows rows_;
  Ranges ranges[kMost / W];
  IVec odd = IVec{};  // where a bias was NaN, +infinity or huge
  Sums<C>* sums;
  float *q, *out, *S, *k_tile, *v_tile;

  Block(const Call& call, int64_t sequence, char* scratch) : a(call), b(sequence), rows_of_block(rows(call)) {
    sums = (Sums<C>*)scratch, scratch += rounded(sizeof(Sums<C>) * rows() / P);
    q = (float*)scratch;
    out = q + (size_t)rows() * a.d_k;
    scratch += rounded(sizeof(float) * rows() * (a.d_k + a.d_v));
    S = (float*)scratch, scratch += rounded(sizeof(float) * kKeys * P);
    k_tile = (float*)scratch;
    v_tile = k_tile + (size_t)kKeys * a.d_k;
  }

  // Where the rows stand and their queries, transposed, times scale. False: a query is not finite, or huge.
  bool gather(int64_t group, int64_t r0) {
    const bool stacked = headwise::stacks_heads(a);
    const int64_t all = stacked ? a.G * a.N : a.N, h0 = stacked ? group * a.G : group;
    rows_.count = (int)(all - r0 < rows() ? all - r0 : rows());
    kv_head = h0 / a.G;
    int64_t n = r0 % a.N, head = h0 + r0 / a.N;
    for (int i = 0; i < rows(); i++) {
      if (i > 0 && i < rows_.count && ++n == a.N) n = 0, head++;
      rows_.head[i] = head, rows_.n[i] = n;
      if (i < rows_.count && a.q_stride[3] == 1) call_for(query_at(i));
      const int64_t position = n + a.offset;
      int64_t low = a.left < 0 ? 0 : position - a.left, high = a.right < 0 ? a.M : position + a.right + 1;
      rows_.low[i] = low < 0 ? 0 : low > a.M ? a.M : low;
      rows_.high[i] = high < 0 ? 0 : high > a.M ? a.M : high;
      if (rows_.high[i] < rows_.low[i]) rows_.high[i] = rows_.low[i];
      rows_.own[i] = a.own[b * a.own_stride + n];
      rows_.first[i] = a.first[b * a.first_stride + n];
      Ranges& range = ranges[i / P];
      range.low.take(rows_.low[i]), range.high.take(rows_.high[i]);
      range.own.take(rows_.own[i]), range.first.take(rows_.first[i]);
    }
    bool small = true;
    for (int i = 0; i < rows(); i += W) small &= gather_queries(i);
    if (!small) return false;
    for (int p = 0; p < rows() / P; p++)
      for (int c = 0; c < C; c++) {
        Sums<C>& s = sums[p];
        s.shift[c] = s.mass[c] = s.moment[c] = s.squares[c] = s.travelled[c] = s.argmax[c] = Vec{};
        s.top[c] = s.own[c] = s.previous[c] = s.next[c] = s.first[c] = splat(-kInfinity);
      }
    if (a.v) memset(out, 0, sizeof(float) * rows() * a.d_v);
    return true;
  }

  int64_t query_at(int i) const { return b * a.q_stride[0] + rows_.head[i] * a.q_stride[1] + rows_.n[i] * a.q_stride[2]; }

  // Have the query that begins there brought near: rows lie far apart, and each would be waited for.
  void call_for(int64_t at) const {
    const int64_t size = a.type == headwise::kFloat32 ? 4 : 2;
    const char* const query = (const char*)a.q + at * size;
    for (int64_t byte = 0; byte < a.d_k * size; byte += 64) __builtin_prefetch(query + byte);
  }

  // The queries of W rows, transposed; lanes beyond the last row get 0. False: a number is not finite, or huge.
  bool gather_queries(int i0) {
    float* const to = q + (size_t)(i0 / P) * P * a.d_k + i0 % P;
    IVec large = IVec{};
    const float most = largest(a);
    const auto put = [&](const Vec* transposed, int64_t d, int width) {
      for (int t = 0; t < width; t++) {
        const Vec x = transposed[t] * a.scale;
        large |= ~(vmax(-x, x) <= most);
        *(Vec*)(to + (d + t) * P) = x;
      }
    };
    int64_t d = 0;
    if (a.type == headwise::kFloat32 && a.q_stride[3] == 1 && i0 + W <= rows_.count)
      for (; d + W <= a.d_k; d += W) {
        Vec square[W];
        for (int i = 0; i < W; i++) square[i] = *(const LooseVec*)((const float*)a.q + query_at(i0 + i) + d);
        transpose(square);
        put(square, d, W);
      }
    for (; d < a.d_k; d += W) {
      const int width = (int)(a.d_k - d < W ? a.d_k - d : W);
      Vec square[W];
      for (int i = 0; i < W; i++) {
        square[i] = Vec{};
        if (i0 + i >= rows_.count) continue;
        for (int t = 0; t < width; t++) square[i][t] = load(a.q, query_at(i0 + i) + (d + t) * a.q_stride[3], a.type);
      }
      transpose(square);
      put(square, d, width);
    }
    return !any(large);
  }

  int rows() const { return rows_of_block; }

  void attend() {
    int64_t from = a.M, to = 0;
    for (int i = 0; i < rows_.count; i++) {
      if (rows_.low[i] < rows_.high[i] && rows_.low[i] < from) from = rows_.low[i];
      if (rows_.high[i] > to) to = rows_.high[i];
    }
    // Tiles begin where they would for any other rows, so that a row's sums do not depend on its block.
    for (int64_t j0 = from / kKeys * kKeys; j0 < to; j0 += kKeys) {
      const int keys = (int)(to - j0 < kKeys ? to - j0 : kKeys);
      if (hidden_from_all(j0, keys)) continue;
      int64_t k_stride = a.k_stride[2], v_stride = a.v_stride[2];
      const float* k = tile_of(a.k, b * a.k_stride[0] + kv_head * a.k_stride[1], a.k_stride, j0, keys, a.d_k, k_tile, k_stride);
      const float* v = a.v ? tile_of(a.v, b * a.v_stride[0] + kv_head * a.v_stride[1], a.v_stride, j0, keys, a.d_v, v_tile, v_stride) : nullptr;
      for (int p = 0; p * P < rows_.count; p++) panel(p, j0, keys, k, k_stride, v, v_stride);
    }
  }

  // Some rows of k or v as floats with stride 1: where they lie, or converted.
  const float* tile_of(const void* from, int64_t start, const int64_t* stride, int64_t j0, int keys, int64_t width, float* tile, int64_t& row) {
    if (a.type == headwise::kFloat32 && stride[3] == 1) return (const float*)from + start + j0 * stride[2];
    for (int j = 0; j < keys; j++)
      for (int64_t d = 0; d < width; d++) tile[j * width + d] = load(from, start + (j0 + j) * stride[2] + d * stride[3], a.type);
    row = width;
    return tile;
  }

  // A mask that is the same for all rows (key padding) may hide a whole tile.
  bool hidden_from_all(int64_t j0, int keys) {
    if (!a.mask_kind || a.mask_stride[2] || (a.mask_stride[1] && rows_.head[0] != rows_.head[rows_.count - 1])) return false;
    for (int j = 0; j < keys; j++)
      if (bias(0, j0 + j) != -kInfinity) return false;
    return true;
  }

  // What the mask adds to row i's score of key j.
  inline __attribute__((always_inline)) float bias(int i, int64_t j) {
    const int64_t at = b * a.mask_stride[0] + rows_.head[i] * a.mask_stride[1] + rows_.n[i] * a.mask_stride[2] + j * a.mask_stride[3];
    if (a.mask_kind == headwise::kBool) return ((const uint8_t*)a.mask)[at] ? 0.f : -kInfinity;
    const float x = ((const float*)a.mask)[at];
    if (!(x <= kLargeScore) || (x > a.hide_below && x < -kLargeScore)) odd = isplat(-1);
    return x > a.hide_below ? x : -kInfinity;
  }

  void panel(int p, int64_t j0, int keys, const float* k, int64_t k_stride, const float* v, int64_t v_stride) {
    const int i0 = p * P, valid = rows_.count - i0 < P ? rows_.count - i0 : P;
    const Ranges& range = ranges[p];
    const int64_t low = range.low.least, high = range.high.most;
    if (j0 >= high || j0 + keys <= low) return;
    if (j0 + keys > high) keys = (int)(high - j0);

    Sums<C>& sum = sums[p];
    Vec top[C];
    IVec raised[C];  // the group of R keys in which the maximum was met first
    for (int c = 0; c < C; c++) top[c] = sum.top[c], raised[c] = IVec{};
    const float* queries = q + (size_t)i0 * a.d_k;
    int j = 0;
    for (; j + R <= keys; j += R) score_rows<R, C>(queries, a.d_k, k + j * k_stride, k_stride, S + j * P, top, j, raised);
    if (j < keys) Rest<R - 1, C>::score(keys - j, queries, a.d_k, k + j * k_stride, k_stride, S + j * P, top, j, raised);

    const bool limited = range.low.most > j0 || range.high.least < j0 + keys;
    if (a.softcap > 0) cap(keys);
    const bool by_row = a.mask_kind && a.mask_stride[2];
    bool stale = limited || (a.softcap > 0 && !by_row);  // the maximum was taken before scores changed
    if (by_row) mask_rows(i0, valid, j0, keys, sum.top, top);
    else if (a.mask_kind) stale |= mask_keys(i0, j0, keys);
    if (limited) limit(i0, j0, keys);
    if (stale)
      for (int c = 0; c < C; c++) {
        Vec m = sum.top[c];
        for (int r = 0; r < keys; r++) m = vmax(m, *(Vec*)(S + r * P + c * W));
        top[c] = m;
      }
    if (stale || by_row) find_largest(sum, top, j0, keys);
    else find_largest(sum, top, raised, j0, keys);
    const bool apart = pick(sum, range, i0, j0, keys);
    Vec alpha[C];
    // Whether the tile's keys all lie before, or after, the own keys of all rows.
    const bool before = range.own.least >= j0 + keys - 1, after = range.own.most <= j0;
    for (int c = 0; c < C; c++) {
      if (before) alpha[c] = sum_weights<1>(sum, c, top[c], i0, j0, keys);
      else if (after) alpha[c] = sum_weights<-1>(sum, c, top[c], i0, j0, keys);
      else alpha[c] = sum_weights<0>(sum, c, top[c], i0, j0, keys);
    }
    if (!v) return;
    if (apart) put_back(sum, i0, j0, keys);
    float* to = out + (size_t)i0 * a.d_v;
    int64_t d = 0;
    for (; d + R <= a.d_v; d += R) value_columns<R, C>(S, keys, v + d, v_stride, to + d * P, alpha);
    if (d < a.d_v) Rest<R - 1, C>::value((int)(a.d_v - d), S, keys, v + d, v_stride, to + d * P, alpha);
  }

  // softcap * tanh(s / softcap).
  void cap(int keys) {
    const float inverse = 1 / a.softcap;
    for (int x = 0; x < keys * P; x += W) *(Vec*)(S + x) = tanh_of(*(Vec*)(S + x) * inverse) * a.softcap;
  }

  // A mask whose rows are alike: one number a key. Whether it changed anything.
  bool mask_keys(int i0, int64_t j0, int keys) {
    bool changed = false;
    const bool by_head = a.mask_stride[1] && rows_.head[i0] != rows_.head[i0 + P - 1];
    for (int j = 0; j < keys; j++) {
      if (by_head) {
        for (int i = 0; i < P; i++) S[j * P + i] += bias(i0 + i, j0 + j);
        changed = true;
        continue;
      }
      const float x = bias(i0, j0 + j);
      if (x == 0) continue;
      changed = true;
      for (int c = 0; c < C; c++) *(Vec*)(S + j * P + c * W) += x;
    }
    return changed;
  }

  // A mask by row and key: W x W squares of it, transposed in registers. The maximum is taken anew, from `before` on.
  void mask_rows(int i0, int valid, int64_t j0, int keys, const Vec* before, Vec* top) {
    const bool bytes = a.mask_kind == headwise::kBool, dense = a.mask_stride[3] == 1;
    for (int c = 0; c < C; c++) {
      Vec m = before[c];
      for (int j = 0; j < keys; j += W) {
        Vec square[W];
        const int width = keys - j < W ? keys - j : W;
        for (int i = 0; i < W; i++) {
          const int row = i0 + c * W + i;
          square[i] = Vec{};
          if (c * W + i >= valid) continue;
          if (dense && width == W) {
            const int64_t at = b * a.mask_stride[0] + rows_.head[row] * a.mask_stride[1] + rows_.n[row] * a.mask_stride[2] + j0 + j;
            if (bytes) {
              square[i] = from_bytes((const uint8_t*)a.mask + at) != 0 ? Vec{} : splat(-kInfinity);
            } else {
              const Vec x = *(const LooseVec*)((const float*)a.mask + at);
              odd |= ~(x <= kLargeScore) | ((x > a.hide_below) & (x < -kLargeScore));
              square[i] = x > a.hide_below ? x : splat(-kInfinity);
            }
          } else {
            for (int t = 0; t < width; t++) square[i][t] = bias(row, j0 + j + t);
          }
        }
        transpose(square);
        for (int t = 0; t < width; t++) {
          Vec* s = (Vec*)(S + (j + t) * P + c * W);
          *s += square[t];
          m = vmax(m, *s);
        }
      }
      top[c] = m;
    }
  }

  // Causal and window limits: row i sees keys low[i] .. high[i] - 1.
  void limit(int i0, int64_t j0, int keys) {
    for (int c = 0; c < C; c++) {
      Vec low, high;
      for (int i = 0; i < W; i++) {
        low[i] = (float)(rows_.low[i0 + c * W + i] - j0);
        high[i] = (float)(rows_.high[i0 + c * W + i] - j0);
      }
      for (int j = 0; j < keys; j++) {
        Vec* s = (Vec*)(S + j * P + c * W);
        const Vec key = splat((float)j);
        *s = (key >= low) & (key < high) ? *s : splat(-kInfinity);
      }
    }
  }

  // The key of the largest score, the first of equals: looked for only where a row's maximum rose.
  void find_largest(Sums<C>& sum, const Vec* top, int64_t j0, int keys) {
    for (int c = 0; c < C; c++) {
      const IVec rose = top[c] > sum.top[c];
      if (!any(rose)) continue;
      Vec at = Vec{};
      for (int j = keys - 1; j >= 0; j--) at = *(Vec*)(S + j * P + c * W) == top[c] ? splat((float)j) : at;
      sum.argmax[c] = rose ? at + (float)j0 : sum.argmax[c];
    }
  }

  // The same where the group of R keys is known that holds it.
  void find_largest(Sums<C>& sum, const Vec* top, const IVec* raised, int64_t j0, int keys) {
    for (int c = 0; c < C; c++) {
      const IVec higher = top[c] > sum.top[c];
      uint32_t rose = bits_of(higher);
      if (kGathers && __builtin_popcount(rose) > 3) {
        IVec at = raised[c];
        for (int r = R - 1; r >= 0; r--) {
          const IVec key = raised[c] + r;
          at = gathered(S + c * W, key * P + lanes()) == top[c] ? key : at;
        }
        sum.argmax[c] = higher ? __builtin_convertvector(at, Vec) + (float)j0 : sum.argmax[c];
        continue;
      }
      for (; rose; rose &= rose - 1) {
        const int i = __builtin_ctz(rose), from = ((const int32_t*)(raised + c))[i], to = from + R < keys ? from + R : keys;
        const float largest = ((const float*)(top + c))[i];
        int at = from;
        for (int j = to - 1; j >= from; j--) at = S[j * P + c * W + i] == largest ? j : at;
        ((float*)(sum.argmax + c))[i] = (float)(j0 + at);
      }
    }
  }

  // Scores of the own key, its neighbours and the first key; the first leaves the tile. Whether any did.
  bool pick(Sums<C>& sum, const Ranges& range, int i0, int64_t j0, int keys) {
    const bool near_own = range.own.most >= j0 - 1 && range.own.least <= j0 + keys;
    const bool near_first = range.first.most >= j0 && range.first.least < j0 + keys;
    if (!near_own && !near_first) return false;
    bool apart = false;
    for (int i = 0; i < P; i++) {
      const int64_t own = rows_.own[i0 + i] - j0, first = rows_.first[i0 + i] - j0;
      if (rows_.own[i0 + i] >= 0 && own >= -1 && own <= keys) {
        if (own >= 0 && own < keys) ((float*)sum.own)[i] = S[own * P + i];
        if (own >= 1) ((float*)sum.previous)[i] = S[(own - 1) * P + i];
        if (own + 1 < keys) ((float*)sum.next)[i] = S[(own + 1) * P + i];
      }
      if (rows_.first[i0 + i] >= 0 && first >= 0 && first < keys) {
        ((float*)sum.first)[i] = S[first * P + i];
        S[first * P + i] = -kInfinity;
        apart = true;
      }
    }
    return apart;
  }

  // The first key's weight, for the output.
  void put_back(const Sums<C>& sum, int i0, int64_t j0, int keys) {
    for (int c = 0; c < C; c++) {
      const Vec weight = exp2_from_least(vmax(sum.first[c] * kLog2E - sum.shift[c], splat(kLeast)));
      for (int i = 0; i < W; i++) {
        const int64_t first = rows_.first[i0 + c * W + i] - j0;
        if (rows_.first[i0 + c * W + i] >= 0 && first >= 0 && first < keys && sum.first[c][i] != -kInfinity) S[first * P + c * W + i] = weight[i];
      }
    }
  }

  // Weights of the lanes of column c and their sums; the factor by which what was summed before shrinks.
  // Side 1, -1: all keys stand before, after the own one, and distances are sums of positive terms without a difference.
  template <int Side>
  inline __attribute__((always_inline)) Vec sum_weights(Sums<C>& sum, int c, Vec top, int i0, int64_t j0, int keys) {
    // A row that has seen nothing yet has no maximum; any finite number serves.
    const Vec shift = top == -kInfinity ? sum.shift[c] : top * kLog2E;
    Vec away;
    const int64_t edge = Side > 0 ? j0 + keys - 1 : j0;
    for (int i = 0; i < W; i++) away[i] = (float)(rows_.own[i0 + c * W + i] - edge);
    Vec mass = Vec{}, moment = Vec{}, squares = Vec{}, travelled = Vec{}, from_own = away;
    // Distances from the tile's edge need no product: a weight counts once for every key between it and the edge.
    const int step = Side < 0 ? -P : P;
    float* s = S + c * W + (Side < 0 ? (keys - 1) * P : 0);
    for (int j = 0; j < keys; j++, s += step) {
      // From the limit on the weight is exactly 0, and x stays finite.
      const Vec x = vmax(*(Vec*)s * kLog2E - shift, splat(kLeast));
      const Vec weight = exp2_from_least(x);
      *(Vec*)s = weight;
      if (Side != 0) travelled += mass;
      else {
        travelled += weight * vmax(from_own, -from_own);
        from_own -= 1.f;
      }
      mass += weight;
      moment += weight * x;
      squares += weight * weight;
    }
    if (Side > 0) travelled += away * mass;
    else if (Side < 0) travelled -= away * mass;
    const Vec fall = vmax(sum.shift[c] - shift, splat(kLeast)), alpha = sum.top[c] == -kInfinity ? Vec{} : exp2_from_least(fall);
    sum.moment[c] = (sum.moment[c] + fall * sum.mass[c]) * alpha + moment;
    sum.mass[c] = sum.mass[c] * alpha + mass;
    sum.squares[c] = sum.squares[c] * (alpha * alpha) + squares;
    sum.travelled[c] = sum.travelled[c] * alpha + travelled;
    sum.top[c] = top;
    sum.shift[c] = shift;
    return alpha;
  }

  void write() {
    for (int i = 0; i < rows_.count; i += W) {
      Vec factor;
      write_statistics(i, factor);
      if (a.v) write_output(i, factor);
    }
  }

  // The statistics of W rows, and the factor by which their outputs are still to be multiplied.
  void write_statistics(int i0, Vec& factor) {
    const Sums<C>& s = sums[i0 / P];
    const int c = i0 % P / W;
    const auto weight = [&](Vec score) { return widened(exp2_from_least(vmax(score * kLog2E - s.shift[c], splat(kLeast)))); };
    const LVec nothing = widened(s.top[c]) == -kInfinity;
    DVec shift = nothing ? DVec{} : widened(s.shift[c]), fall = nothing ? DVec{} : dsplat(1), drop = DVec{}, at_sink = DVec{}, sink_moment = DVec{};
    if (a.sinks) {
      for (int i = 0; i < W; i++) {
        const double sink = a.sinks[rows_.head[i0 + i]] * (double)kLog2E;
        // The sink may stand above every score: all sums move to the larger of the two.
        const double highest = nothing[i] || sink > shift[i] ? sink : shift[i];
        if (highest == -kInfinity) continue;
        drop[i] = nothing[i] ? 0 : shift[i] - highest;
        fall[i] *= exp2(drop[i]);
        at_sink[i] = exp2(sink - highest);
        sink_moment[i] = at_sink[i] > 0 ? at_sink[i] * (sink - highest) : 0;
        shift[i] = highest;
      }
    }
    const DVec at_first = weight(s.first[c]) * fall, keys = widened(s.mass[c]) * fall;
    const DVec moment = (widened(s.moment[c]) + drop * widened(s.mass[c])) * fall + sink_moment;
    const DVec mass = keys + at_sink, sum = mass + at_first, total = sum == 0. ? dsplat(1) : sum, one = 1. / total;
    const DVec log_total = log_of(total), log_mass = log_of(mass > 0. ? mass : dsplat(1));
    const DVec first_score = at_first > 0. ? widened(s.first[c]) * (double)kLog2E - shift : DVec{};
    const LVec own = *(const LooseLVec*)(rows_.own + i0), first = *(const LooseLVec*)(rows_.first + i0);
    const DVec walk = first < 0 ? DVec{} : __builtin_convertvector(own > first ? own - first : first - own, DVec);

    const DVec none = dsplat(NAN);
    Vec value[headwise::kStatistics];
    value[headwise::kLse] = narrowed(sum == 0. ? dsplat(-kInfinity) : shift * kLn2 + log_total);
    value[headwise::kMaxScore] = s.top[c];
    value[headwise::kEntropy] = narrowed(log_total - (moment + at_first * first_score) * one * kLn2);
    value[headwise::kLargest] = narrowed(weight(s.top[c]) * fall * one);
    value[headwise::kOwn] = narrowed(weight(s.own[c]) * fall * one);
    value[headwise::kPrevious] = narrowed(weight(s.previous[c]) * fall * one);
    value[headwise::kNext] = narrowed(weight(s.next[c]) * fall * one);
    value[headwise::kFirst] = narrowed(at_first * one);
    value[headwise::kRest] = narrowed(mass * one);
    value[headwise::kEntropyRest] = narrowed(mass > 0. ? log_mass - moment / mass * kLn2 : none);
    value[headwise::kDistance] = narrowed(keys + at_first > 0. ? (widened(s.travelled[c]) * fall + at_first * walk) / (keys + at_first) : none);
    value[headwise::kIpr] = narrowed((widened(s.squares[c]) * fall * fall + at_first * at_first) * one * one);
    value[headwise::kSink] = narrowed(at_sink * one);
    factor = narrowed(fall * one);

    const int64_t plane = a.B * a.H * a.N, start = (b * a.H + rows_.head[i0]) * a.N + rows_.n[i0];
    const int last = rows_.count - i0 < W ? rows_.count - i0 - 1 : W - 1;
    const bool together = last == W - 1 && rows_.head[i0 + last] == rows_.head[i0];
    for (int k = 0; k < headwise::kStatistics; k++) {
      float* const to = a.statistics + k * plane;
      if (together) *(LooseVec*)(to + start) = value[k];
      else
        for (int i = 0; i <= last; i++) to[(b * a.H + rows_.head[i0 + i]) * a.N + rows_.n[i0 + i]] = value[k][i];
    }
    if (together) *(LooseLVec*)(a.argmax + start) = __builtin_convertvector(s.argmax[c], LVec);
    else
      for (int i = 0; i <= last; i++) a.argmax[(b * a.H + rows_.head[i0 + i]) * a.N + rows_.n[i0 + i]] = (int64_t)s.argmax[c][i];
  }

  void write_output(int i0, Vec factor) {
    const float* const from = out + (size_t)(i0 / P) * P * a.d_v + i0 % P;
    const bool dense = a.type == headwise::kFloat32 && a.out_stride[3] == 1;
    for (int64_t d = 0; d < a.d_v; d += W) {
      const int width = (int)(a.d_v - d < W ? a.d_v - d : W);
      Vec square[W];
      for (int t = 0; t < W; t++) square[t] = t < width ? *(const Vec*)(from + (d + t) * P) * factor : Vec{};
      transpose(square);
      for (int i = 0; i < W && i0 + i < rows_.count; i++) {
        const int64_t to = b * a.out_stride[0] + rows_.head[i0 + i] * a.out_stride[1] + rows_.n[i0 + i] * a.out_stride[2] + d * a.out_stride[3];
        if (dense && width == W) *(LooseVec*)((float*)a.out + to) = square[i];
        else
          for (int t = 0; t < width; t++) store(a.out, to + t * a.out_stride[3], a.type, square[i][t]);
      }
    }
  }
};

// Blocks of many rows, or of one vector's rows where a call has few.
bool narrow(const Call& a) { return a.N * (headwise::stacks_heads(a) ? a.G : 1) <= W; }

static int64_t rows(const Call& a) { return narrow(a) ? Block<1>::rows(a) : Block<HW_COLUMNS>::rows(a); }
static size_t scratch(const Call& a) { return narrow(a) ? Block<1>::scratch(a) : Block<HW_COLUMNS>::scratch(a); }
static bool block(const Call& a, int64_t b, int64_t group, int64_t r0, char* scratch) {
  return narrow(a) ? Block<1>::run(a, b, group, r0, scratch) : Block<HW_COLUMNS>::run(a, b, group, r0, scratch);
}

// Whether all keys of a head are finite, and none is so large that a score could overflow.
static bool finite(const Call& a, int64_t b, int64_t kv_head) {
  const int64_t start = b * a.k_stride[0] + kv_head * a.k_stride[1];
  const bool dense = a.type == headwise::kFloat32 && a.k_stride[3] == 1;
  IVec large = IVec{};
  const float most = largest(a);
  for (int64_t j = 0; j < a.M; j++) {
    const int64_t row = start + j * a.k_stride[2];
    int64_t d = 0;
    if (dense)
      for (; d + W <= a.d_k; d += W) {
        const Vec x = *(const LooseVec*)((const float*)a.k + row + d);
        large |= ~(vmax(-x, x) <= most);
      }
    for (; d < a.d_k; d++)
      if (!(fabsf(load(a.k, row + d * a.k_stride[3], a.type)) <= most)) return false;
  }
  return !any(large);
}

extern const headwise::Loop loop = {rows, scratch, block, finite, sums};

}  // namespace HW_LEVEL
