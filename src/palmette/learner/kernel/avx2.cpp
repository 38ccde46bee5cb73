// The kernel with AVX2.
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>

#include "kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define PALMETTE_AVX2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#include "chain.h"
void palmette::descend_avx2(const Descent &descent, Next next, void *counter) { work(descent, next, counter); }
double palmette::rate_avx2(int64_t rounds, float *result) { return multiply_add(rounds, result); }
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
void palmette::descend_avx2(const Descent &, Next, void *) {}
double palmette::rate_avx2(int64_t, float *) { return 0; }
#endif
