// Sixteen floats, however many registers they take. Every operation rounds once and sums have one order, so all instruction
// sets give the same bits. Products are only ever fused with a sum by `fma`: build with -ffp-contract=off.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// The compiler must unroll these loops: what they work on has to stay in registers.
#define EACH _Pragma("GCC unroll 32")

namespace {

constexpr int64_t LANES = 16;
constexpr int64_t FEW_ROWS = 128;  // rows of `few_outers` whose terms are listed at a time

#if defined(PALMETTE_AVX512)
constexpr int DOT_ROWS = 4, DOT_COLUMNS = 6;      // sums that stay in registers, in `dots` ...
constexpr int OUTER_ROWS = 4, OUTER_COLUMNS = 5;  // ... in `outers` ...
constexpr int FEW_COLUMNS = 9;                    // ... and in `few_outers`

struct Vec { __m512 v; };
inline Vec load(const float *p) { return {_mm512_loadu_ps(p)}; }
inline Vec load_first(const float *p, int64_t n) { return {_mm512_maskz_loadu_ps((1u << n) - 1, p)}; }
inline void store(float *p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec all(float x) { return {_mm512_set1_ps(x)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec if_less(Vec a, Vec b, Vec yes, Vec no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline Vec power_of_two(Vec magic) {  // of the whole number in the last bits of `magic`
    const __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(magic.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3F800000)))};
}
inline Vec from_bytes(const uint8_t *p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))};
}
inline __m256 halved(Vec a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
}

#elif defined(PALMETTE_AVX2)
constexpr int DOT_ROWS = 3, DOT_COLUMNS = 2;
constexpr int OUTER_ROWS = 6, OUTER_COLUMNS = 1, FEW_COLUMNS = 6;

struct Vec { __m256 a, b; };
inline Vec load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec load_first(const float *p, int64_t n) {
    return {_mm256_maskload_ps(p, first(static_cast<int>(n))), _mm256_maskload_ps(p + 8, first(static_cast<int>(n) - 8))};
}
inline void store(float *p, Vec x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline Vec all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Vec operator+(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec operator-(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec operator*(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec operator/(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec if_less(Vec x, Vec y, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline __m256 power_of_two(__m256 magic) {
    const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(magic), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3F800000)));
}
inline Vec power_of_two(Vec magic) { return {power_of_two(magic.a), power_of_two(magic.b)}; }
inline Vec from_bytes(const uint8_t *p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline __m256 halved(Vec x) { return _mm256_add_ps(x.a, x.b); }

#elif defined(PALMETTE_NEON)
constexpr int DOT_ROWS = 2, DOT_COLUMNS = 3;
constexpr int OUTER_ROWS = 6, OUTER_COLUMNS = 1, FEW_COLUMNS = 6;

struct Vec { float32x4_t p[4]; };
template <class Make> inline Vec each(Make make) { return {{make(0), make(1), make(2), make(3)}}; }
inline Vec load(const float *p) { return each([&](int i) { return vld1q_f32(p + 4 * i); }); }
inline Vec load_first(const float *p, int64_t n) {
    float some[LANES] = {};
    std::memcpy(some, p, static_cast<size_t>(n) * sizeof(float));
    return load(some);
}
inline void store(float *p, Vec x) { for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.p[i]); }
inline Vec all(float x) { return each([&](int) { return vdupq_n_f32(x); }); }
inline Vec fma(Vec x, Vec y, Vec z) { return each([&](int i) { return vfmaq_f32(z.p[i], x.p[i], y.p[i]); }); }
inline Vec operator+(Vec x, Vec y) { return each([&](int i) { return vaddq_f32(x.p[i], y.p[i]); }); }
inline Vec operator-(Vec x, Vec y) { return each([&](int i) { return vsubq_f32(x.p[i], y.p[i]); }); }
inline Vec operator*(Vec x, Vec y) { return each([&](int i) { return vmulq_f32(x.p[i], y.p[i]); }); }
inline Vec operator/(Vec x, Vec y) { return each([&](int i) { return vdivq_f32(x.p[i], y.p[i]); }); }
inline Vec if_less(Vec x, Vec y, Vec yes, Vec no) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(x.p[i], y.p[i]), yes.p[i], no.p[i]); });
}
inline Vec power_of_two(Vec magic) {
    return each([&](int i) {
        const int32x4_t bits = vshlq_n_s32(vreinterpretq_s32_f32(magic.p[i]), 23);
        return vreinterpretq_f32_s32(vaddq_s32(bits, vdupq_n_s32(0x3F800000)));
    });
}
inline Vec from_bytes(const uint8_t *p) {
    return each([&](int i) {
        float some[4];
        for (int k = 0; k < 4; ++k) some[k] = p[4 * i + k];
        return vld1q_f32(some);
    });
}
#endif

// The sums over the lanes of up to eight vectors: lanes 8 apart are added first, then 4, 2 and 1 apart.
#if defined(PALMETTE_NEON)
inline void sums(const Vec *x, int many, float *result) {
    for (int k = 0; k < many; ++k) {
        const float32x4_t four = vaddq_f32(vaddq_f32(x[k].p[0], x[k].p[2]), vaddq_f32(x[k].p[1], x[k].p[3]));
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        result[k] = vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
}
#else
inline __m256 folded(__m256 x, __m256 y) {
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}
inline __m256 paired(__m256 x, __m256 y) {
    return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xEE));
}
inline void sums(const Vec *x, int many, float *result) {
    __m256 h[8];
    EACH for (int k = 0; k < 8; ++k) h[k] = k < many ? halved(x[k]) : _mm256_setzero_ps();
    const __m256 low = paired(folded(h[0], h[4]), folded(h[1], h[5]));
    const __m256 high = paired(folded(h[2], h[6]), folded(h[3], h[7]));
    _mm256_storeu_ps(result, _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xDD)));
}
#endif

// The largest of the lanes, in any order: there is no rounding. A NaN need not be found.
#if defined(PALMETTE_NEON)
inline float largest(Vec x) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.p[0], x.p[1]), vmaxq_f32(x.p[2], x.p[3])));
}
#else
inline float largest(Vec x) {
#if defined(PALMETTE_AVX512)
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x.v), 1));
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), high);
#else
    const __m256 eight = _mm256_max_ps(x.a, x.b);
#endif
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
#endif

inline float sum(Vec x) {
    float result[8];
    sums(&x, 1, result);
    return result[0];
}

}  // namespace
