// Functions of numbers: activations, the cross-entropy, and their gradients.
#pragma once
#include <initializer_list>
#include <limits>

#include "vector.h"

namespace {

inline int64_t blocks(int64_t n, int64_t most) { return (n + most - 1) / most; }
inline int64_t padded(int64_t n) { return blocks(n, LANES) * LANES; }

inline Vec exponential(Vec x) {
    // exp(x) = 2^k exp(r), |r| <= log(2) / 2. A NaN is in no order, so it passes through every `if_less`.
    x = if_less(x, all(-87.0f), all(-87.0f), if_less(all(88.0f), x, all(88.0f), x));
    const Vec magic = fma(x, all(1.44269504f), all(12582912.0f)), k = magic - all(12582912.0f);
    const Vec r = fma(k, all(2.12194440e-4f), fma(k, all(-0.693359375f), x));
    Vec p = all(1.9875691500e-4f);
    for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, all(next));
    return fma(p, r * r, r + all(1.0f)) * power_of_two(magic);
}

inline Vec sigmoid(Vec x) { return all(1.0f) / (all(1.0f) + exponential(all(0.0f) - x)); }

inline Vec tangent(Vec x) {  // hyperbolic
    const Vec size = if_less(x, all(0.0f), all(0.0f) - x, x), z = x * x;
    Vec p = all(-5.70498872745e-3f);
    for (float next : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
        p = fma(p, z, all(next));
    const Vec large = all(1.0f) - all(2.0f) / (exponential(size + size) + all(1.0f));
    return if_less(size, all(0.625f), fma(p * z, x, x), if_less(x, all(0.0f), all(0.0f) - large, large));
}

inline Vec activated(Vec x, int64_t kind) {
    switch (kind) {
        case RELU: return if_less(x, all(0.0f), all(0.0f), x);
        case TANH: return tangent(x);
        case SIGMOID: return sigmoid(x);
        default: return x;
    }
}

// The gradient before an activation, of the one after it and of the activation's value.
inline Vec activated_back(Vec delta, Vec value, int64_t kind) {
    switch (kind) {
        case RELU: return if_less(all(0.0f), value, delta, all(0.0f));
        case TANH: return delta * (all(1.0f) - value * value);
        case SIGMOID: return delta * (all(1.0f) - value) * value;
        default: return delta;
    }
}

inline Vec lanes() {
    constexpr float number[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(number);
}

// The classes' probabilities times `factor`, with the factor taken off at the right class.
inline void cross_entropy_back(const float *output, int64_t classes, int64_t right, float factor, float *delta) {
    const float none = -std::numeric_limits<float>::infinity();
    const int64_t end = padded(classes);
    Vec most = all(none);
    for (int64_t i = 0; i < end; i += LANES) {
        const Vec x = if_less(lanes(), all(static_cast<float>(classes - i)), load(output + i), all(none));
        most = if_less(most, x, x, most);
    }
    const float top = largest(most);
    Vec total = all(0.0f);
    for (int64_t i = 0; i < end; i += LANES) {
        const Vec e = exponential(load(output + i) - all(top));
        const Vec real = if_less(lanes(), all(static_cast<float>(classes - i)), e, all(0.0f));
        store(delta + i, real);
        total = total + real;
    }
    const Vec scale = all(factor / sum(total));
    for (int64_t i = 0; i < end; i += LANES) store(delta + i, load(delta + i) * scale);
    delta[right] -= factor;
}

// Multiplies and adds in registers alone, `rounds` times; returns how many numbers were multiplied and added.
inline double multiply_add(int64_t rounds, float *result) {
    constexpr int MANY = OUTER_ROWS * OUTER_COLUMNS;
    Vec total[MANY];
    const Vec factor = all(result[0]);
    EACH for (int k = 0; k < MANY; ++k) total[k] = all(static_cast<float>(k));
    for (int64_t i = 0; i < rounds; ++i) {
        EACH for (int k = 0; k < MANY; ++k) total[k] = fma(total[k], factor, factor);
    }
    Vec last = total[0];
    for (int k = 1; k < MANY; ++k) last = last + total[k];
    result[0] = sum(last);
    return static_cast<double>(rounds) * MANY * LANES;
}

}  // namespace
