// The kernel with NEON, which every 64-bit ARM processor has.
#include "kernel.h"

#if defined(__aarch64__)
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>
#define PALMETTE_NEON
#include "chain.h"
void palmette::descend_neon(const Descent &descent, Next next, void *counter) { work(descent, next, counter); }
double palmette::rate_neon(int64_t rounds, float *result) { return multiply_add(rounds, result); }
#else
void palmette::descend_neon(const Descent &, Next, void *) {}
double palmette::rate_neon(int64_t, float *) { return 0; }
#endif
