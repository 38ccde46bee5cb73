// What the kernel is given and what it does: local descents of chains of linear layers, device after device.
// These structures are the C interface; palmette/learner/kernel/__init__.py mirrors them field by field.
#pragma once
#include <cstdint>

extern "C" {

enum Activation { NONE = 0, RELU = 1, TANH = 2, SIGMOID = 3 };
enum Loss { CROSS_ENTROPY = 0, SQUARED = 1, LOGISTIC = 2 };

// One linear layer. A parameter lies in every device's row, or it is frozen and all devices share it.
struct Layer {
    int64_t inputs, outputs;
    int64_t weight, bias;                       // where they begin in a row; -1 where they are frozen, or there is none
    const float *frozen_weight, *frozen_bias;   // or null
    int64_t activation;
    int64_t learns_weight, learns_bias;         // 0 where it stays as it is
};

struct Samples {
    const void *features;      // one line of `width` numbers after the other
    int64_t bytes;             // 1 where they are bytes, which become value * scale + shift; else floats
    int64_t width, count;
    float scale, shift;
    const int64_t *classes;    // of the cross-entropy, one per sample
    const float *targets;      // of the other losses, one per output of the last layer
};

// Which samples each step takes; palmette/learner/batches.py says how they are addressed.
struct Plan {
    const uint64_t *address;
    const int64_t *count, *first, *primes;
    int64_t size, begin;
    int64_t same, epochs, whole;
};

// One thing that happens in every step: a mixture of two models, into = share * at + (1 - share) * other, or a gradient step,
// into += pull * (centre - into) - decay * into - rate * mean gradient of `at`.
struct Operation {
    int64_t into, at, other;   // numbers of models; other is -1 where `at` is copied
    const double *number;      // the share or the rate
    int64_t each;              // 1 where there is one per device, 0 where all share one
    const Plan *plan;          // the batches of a gradient step; null for a mixture
};

// The steps `begin` to `end` (less one) of each device. Its models lie in one line, one after the other.
struct Descent {
    const Layer *layers;
    int64_t depth, loss;
    const Operation *operations;
    int64_t many, models;
    const float *start, *centre;   // centre may be null
    int64_t start_line, centre_line, width;
    float *result;
    const double *pull, *decay;
    int64_t each;                  // as in an operation
    const int64_t *steps;          // how many steps each device takes in all
    int64_t devices, begin, end;
    const Samples *samples;
};

// Returns 0; or -1 where there is no memory, or 1 + the first device whose samples are not within the samples given.
int64_t palmette_descend(const Descent *descent, int64_t instructions, int64_t threads);

// The best instruction set this processor has: 0 none that the kernel is written for, 1 AVX2, 2 AVX-512, 3 NEON.
int64_t palmette_instructions(void);

// Multiplies and adds as fast as a core can, in registers alone, for the benchmark's limit; returns how often it did.
double palmette_multiply_add(int64_t rounds, int64_t instructions);
}

namespace palmette {
// Takes the steps of one device after the other: each number that `next` gives, until that is beyond the last.
using Next = int64_t (*)(void *);
void descend_avx2(const Descent &, Next, void *);
void descend_avx512(const Descent &, Next, void *);
void descend_neon(const Descent &, Next, void *);
double rate_avx2(int64_t rounds, float *result);
double rate_avx512(int64_t rounds, float *result);
double rate_neon(int64_t rounds, float *result);
}  // namespace palmette
