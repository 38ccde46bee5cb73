// The kernel with AVX-512.
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>

#include "kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define PALMETTE_AVX512
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx2,fma")
#endif
#include "chain.h"
void palmette::descend_avx512(const Descent &descent, Next next, void *counter) { work(descent, next, counter); }
double palmette::rate_avx512(int64_t rounds, float *result) { return multiply_add(rounds, result); }
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
void palmette::descend_avx512(const Descent &, Next, void *) {}
double palmette::rate_avx512(int64_t, float *) { return 0; }
#endif
