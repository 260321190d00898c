// Vectors of W floats by the compiler's vector extensions, and the few functions that the row loop needs of them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define HW_INLINE static inline __attribute__((always_inline))

namespace HW_LEVEL {

typedef float Vec __attribute__((vector_size(W * 4), may_alias));
typedef int32_t IVec __attribute__((vector_size(W * 4), may_alias));
typedef float LooseVec __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef double DVec __attribute__((vector_size(W * 8), may_alias));
typedef int64_t LVec __attribute__((vector_size(W * 8), may_alias));
typedef int64_t LooseLVec __attribute__((vector_size(W * 8), aligned(8), may_alias));

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504088896340736f;
// Its inverse, to the digits of a double: exponents are counted in units of it.
constexpr double kLn2 = 1 / (double)kLog2E;

HW_INLINE Vec splat(float x) { return x - Vec{}; }
HW_INLINE IVec isplat(int32_t x) { return x - IVec{}; }

// a > b ? a : b, of which GCC 12 makes two instructions where one side is a constant.
HW_INLINE Vec vmax(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

HW_INLINE DVec dsplat(double x) { return x - DVec{}; }
HW_INLINE DVec widened(Vec x) { return __builtin_convertvector(x, DVec); }
HW_INLINE Vec narrowed(DVec x) { return __builtin_convertvector(x, Vec); }

template <int... I>
HW_INLINE IVec counting(std::integer_sequence<int, I...>) { return IVec{I...}; }
HW_INLINE IVec lanes() { return counting(std::make_integer_sequence<int, W>{}); }

// Whether one instruction reads W numbers from W places.
#if defined(__AVX512F__)
constexpr bool kGathers = true;
HW_INLINE Vec gathered(const float* from, IVec at) { return (Vec)_mm512_i32gather_ps((__m512i)at, from, 4); }
#else
constexpr bool kGathers = false;
HW_INLINE Vec gathered(const float* from, IVec at) {
  Vec x;
  for (int i = 0; i < W; i++) x[i] = from[at[i]];
  return x;
}
#endif

// W bytes as whole numbers. The intrinsics are there because GCC 12 makes poor code of the conversion.
HW_INLINE IVec from_bytes(const uint8_t* bytes) {
#if defined(__AVX512F__)
  return (IVec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bytes));
#elif defined(__AVX2__)
  return (IVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)bytes));
#else
  IVec wide;
  for (int i = 0; i < W; i++) wide[i] = bytes[i];
  return wide;
#endif
}

// Half a vector's numbers, as doubles in one register: GCC keeps a DVec in memory from turn to turn of a loop.
typedef double Half __attribute__((vector_size(W * 4), may_alias));
typedef float HalfFloats __attribute__((vector_size(W * 2)));
template <int... I>
HW_INLINE Half half_of(Vec x, int which, std::integer_sequence<int, I...>) {
  const HalfFloats low = __builtin_shufflevector(x, x, I...), high = __builtin_shufflevector(x, x, (I + W / 2)...);
  return __builtin_convertvector(which ? high : low, Half);
}
HW_INLINE Half low_half(Vec x) { return half_of(x, 0, std::make_integer_sequence<int, W / 2>{}); }
HW_INLINE Half high_half(Vec x) { return half_of(x, 1, std::make_integer_sequence<int, W / 2>{}); }

// A bit for each lane whose number is negative, as those of a true comparison are.
HW_INLINE uint32_t bits_of(IVec mask) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epi32_mask((__m512i)mask, _mm512_setzero_si512());
#elif defined(__AVX2__)
  return (uint32_t)_mm256_movemask_ps((__m256)mask);
#else
  uint32_t bits = 0;
  for (int i = 0; i < W; i++) bits |= (uint32_t)(mask[i] < 0) << i;
  return bits;
#endif
}
HW_INLINE bool any(IVec mask) { return bits_of(mask) != 0; }

constexpr float kLeast = -127.f;

// 2^x for kLeast <= x < 128: relative error 2e-7, exactly 1 at 0 and exactly 0 at kLeast.
// x is split into a whole part, which becomes the exponent, and f in [-1/2, 1/2], for a minimax polynomial of degree 5
// whose constant term is 1, so that the largest weight is exact.
HW_INLINE Vec exp2_from_least(Vec x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number, left in the low bits
  const Vec whole = x + kRound;
  const Vec f = x - (whole - kRound);
  Vec p = splat(1.326472731e-03f);
  p = p * f + 9.671512991e-03f;
  p = p * f + 5.550733581e-02f;
  p = p * f + 2.402224243e-01f;
  p = p * f + 6.931470037e-01f;
  p = p * f + 1.f;
  return (Vec)((IVec)p + ((IVec)whole << 23));
}

// ln x for normal x > 0: relative error 1e-10. x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)).
HW_INLINE DVec log_of(DVec x) {
  constexpr int64_t kHalf = 0x3fe6a09e667f3bcd;  // sqrt(1/2)
  constexpr double kExponent = 6755399441055744.;  // 1.5 * 2^52: a whole number added to its bits is added to it
  const LVec above = (LVec)x - kHalf, whole = above >> 52;
  const DVec e = (DVec)(whole + (LVec)dsplat(kExponent)) - kExponent;
  const DVec m = (DVec)((LVec)x - (whole << 52));
  const DVec t = (m - 1.) / (m + 1.), y = t * t;
  DVec series = dsplat(2. / 11);
  series = series * y + 2. / 9;
  series = series * y + 2. / 7;
  series = series * y + 2. / 5;
  series = series * y + 2. / 3;
  return e * kLn2 + (t * y * series + 2. * t);
}

// tanh by its series below 1/4, else by 2^x: relative error 5e-7.
HW_INLINE Vec tanh_of(Vec x) {
  const Vec size = vmax(x, -x);
  const Vec t = exp2_from_least(vmax(size * (-2.f * kLog2E), splat(kLeast)));
  const Vec far = (1.f - t) / (1.f + t);
  const Vec y = x * x;
  Vec series = splat(62.f / 2835);
  series = series * y - 17.f / 315;
  series = series * y + 2.f / 15;
  series = series * y - 1.f / 3;
  const Vec near = x + x * y * series;
  return size < 0.25f ? near : (x < 0.f ? -far : far);
}

template <int Step, int... I>
HW_INLINE void swap_lanes(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
  const Vec low = __builtin_shufflevector(a, b, ((I & Step) ? I - Step + W : I)...);
  const Vec high = __builtin_shufflevector(a, b, ((I & Step) ? I + W : I + Step)...);
  a = low, b = high;
}

template <int Step>
HW_INLINE void transpose_stage(Vec* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < W; i++)
    if (!(i & Step)) swap_lanes<Step>(rows[i], rows[i + Step], std::make_integer_sequence<int, W>{});
}

// The W x W square of rows, transposed in registers.
HW_INLINE void transpose(Vec* rows) {
  transpose_stage<1>(rows);
  transpose_stage<2>(rows);
  if constexpr (W > 4) transpose_stage<4>(rows);
  if constexpr (W > 8) transpose_stage<8>(rows);
}

HW_INLINE float half_to_float(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  uint32_t word;
  if (exponent == 31) word = sign | 0x7f800000 | fraction << 13;
  else if (exponent) word = sign | (exponent + 112) << 23 | fraction << 13;
  else {
    // A denormal half is fraction * 2^-24: exact in float.
    const float value = (float)fraction * 5.9604644775390625e-08f;
    return sign ? -value : value;
  }
  float x;
  memcpy(&x, &word, 4);
  return x;
}

HW_INLINE float bfloat_to_float(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &word, 4);
  return x;
}

// To the nearest, ties to even.
HW_INLINE uint16_t float_to_bfloat(float x) {
  uint32_t word;
  memcpy(&word, &x, 4);
  if ((word & 0x7fffffff) > 0x7f800000) return (uint16_t)(word >> 16 | 0x40);
  return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

HW_INLINE uint16_t float_to_half(float x) {
  uint32_t word;
  memcpy(&word, &x, 4);
  const uint16_t sign = (uint16_t)(word >> 16 & 0x8000);
  const uint32_t size = word & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  if (size >= 0x477ff000) return sign | 0x7c00;  // rounds to 65536 or more
  if (size < 0x38800000) {
    // Below 2^-14: a whole number of 2^-24, rounded by the addition of 2^-1 * 2^-14 * 2^10.
    float whole;
    memcpy(&whole, &size, 4);
    whole += 0.5f;
    uint32_t bits;
    memcpy(&bits, &whole, 4);
    return sign | (uint16_t)(bits - 0x3f000000);
  }
  return sign | (uint16_t)((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

HW_INLINE float load(const void* from, int64_t index, int32_t type) {
  if (type == 0) return ((const float*)from)[index];
  const uint16_t bits = ((const uint16_t*)from)[index];
  return type == 1 ? bfloat_to_float(bits) : half_to_float(bits);
}

HW_INLINE void store(void* to, int64_t index, int32_t type, float x) {
  if (type == 0) ((float*)to)[index] = x;
  else ((uint16_t*)to)[index] = type == 1 ? float_to_bfloat(x) : float_to_half(x);
}

}  // namespace HW_LEVEL
