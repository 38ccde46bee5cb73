// The descent of one device after the other. Included once for each instruction set, which says what a `Vec` is.
#pragma once
#include <cstdlib>
#include <limits>
#include <new>

#include "batches.h"
#include "products.h"

namespace {

// -- functions of numbers ------------------------------------------------------------------------------------------------

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

// -- one thread's memory and work ----------------------------------------------------------------------------------------

// Memory that begins at a line of the cache and is full of zeros.
template <class T> class Memory {
public:
    explicit Memory(int64_t count) {
        const size_t size = (static_cast<size_t>(count) * sizeof(T) + 127) / 64 * 64;
        void *at = nullptr;
        if (posix_memalign(&at, 64, size) != 0) throw std::bad_alloc();
        at_ = static_cast<T *>(std::memset(at, 0, size));
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { std::free(at_); }
    T *get() const { return at_; }

private:
    T *at_;
};

class Worker {
public:
    explicit Worker(const Descent &d)
        : d_(d), most_(d.plan->size), weights_(total(d, true)), lines_(d.depth * most_), values_(total(d, false) * most_),
          deltas_(2 * widest(d) * most_), turned_(widest(d) * padded(most_)), converted_(copies(d) ? line(d) * most_ : 1),
          below_(widest(d)), indices_(2 * most_), layers_(d.depth) {
        float *weight = weights_.get(), *value = values_.get();
        for (int64_t k = 0; k < d.depth; ++k) {
            const Layer &layer = d.layers[k];
            Place &own = layers_.get()[k];
            own.weight = weight, own.line = padded(layer.inputs), own.out = padded(layer.outputs);
            own.bias = weight += layer.outputs * own.line;
            weight += own.out;
            own.has_bias = layer.bias >= 0 || layer.frozen_bias != nullptr;
            own.lines = lines_.get() + k * most_;
            own.value = value, value += own.out * most_;
            if (layer.frozen_weight) read_weight(k, layer.frozen_weight);
            if (layer.frozen_bias) std::memcpy(own.bias, layer.frozen_bias, bytes(layer.outputs));
            for (int64_t s = 0; k && s < most_; ++s) own.lines[s] = layers_.get()[k - 1].value + s * layers_.get()[k - 1].out;
            if (first_ < 0 && (layer.learns_weight || layer.learns_bias)) first_ = k;
        }
    }

    void run(int64_t device) {
        const int64_t end = least(d_.end, d_.steps[device]);
        if (d_.begin < end && first_ >= 0) descend(device, end);
        else std::memmove(d_.result + device * d_.width, d_.start + device * d_.start_line, bytes(d_.width));
    }

private:
    struct Place {
        float *weight, *bias, *value;  // weights with lines of `line`; outputs with lines of `out`
        const float **lines;           // where the inputs of each sample lie
        int64_t line, out;
        bool has_bias;
    };

    static size_t bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }
    static int64_t line(const Descent &d) { return padded(d.layers[0].inputs); }
    static bool copies(const Descent &d) { return d.samples->bytes != 0; }
    static int64_t total(const Descent &d, bool weights) {
        int64_t found = 0;
        for (int64_t k = 0; k < d.depth; ++k)
            found += padded(d.layers[k].outputs) + (weights ? d.layers[k].outputs * padded(d.layers[k].inputs) : 0);
        return found;
    }
    static int64_t widest(const Descent &d) {
        int64_t found = 0;
        for (int64_t k = 0; k < d.depth; ++k)
            if (padded(d.layers[k].outputs) > found) found = padded(d.layers[k].outputs);
        return found;
    }

    void read_weight(int64_t k, const float *from) {
        const Layer &layer = d_.layers[k];
        const Place &own = layers_.get()[k];
        for (int64_t o = 0; o < layer.outputs; ++o) {
            std::memcpy(own.weight + o * own.line, from + o * layer.inputs, bytes(layer.inputs));
            std::memset(own.weight + o * own.line + layer.inputs, 0, bytes(own.line - layer.inputs));
        }
    }

    void descend(int64_t device, int64_t end) {
        const float *start = d_.start + device * d_.start_line;
        const Before before{static_cast<float>(d_.pull[device * d_.each]), static_cast<float>(d_.decay[device * d_.each]),
                            d_.centre ? d_.centre + device * d_.centre_line : nullptr, 0};
        for (int64_t k = 0; k < d_.depth; ++k) {
            if (d_.layers[k].weight >= 0) read_weight(k, start + d_.layers[k].weight);
            if (d_.layers[k].bias >= 0)
                std::memcpy(layers_.get()[k].bias, start + d_.layers[k].bias, bytes(d_.layers[k].outputs));
        }
        Batches batches(*d_.plan, device);
        int64_t *now = indices_.get(), *after = now + most_;
        int64_t many = batches.take(d_.begin, now), coming = 0;
        for (int64_t step = d_.begin; step < end; ++step) {
            if (step + 1 < end) coming = batches.take(step + 1, after);
            place(now, many);
            forward(many);
            loss_back(now, many, static_cast<float>(-d_.rate[device * d_.each] / static_cast<double>(many)));
            back(many, before, after, step + 1 < end ? coming : 0);
            int64_t *last = now;
            now = after, after = last, many = coming;
        }
        write(device);
    }

    // Finds the samples of a step: where they lie, or converted to floats.
    void place(const int64_t *samples, int64_t many) {
        const Samples &from = *d_.samples;
        const float **lines = layers_.get()[0].lines;
        for (int64_t s = 0; s < many; ++s) {
            if (!from.bytes) {
                lines[s] = static_cast<const float *>(from.features) + samples[s] * from.width;
                continue;
            }
            const uint8_t *raw = static_cast<const uint8_t *>(from.features) + samples[s] * from.width;
            float *into = converted_.get() + s * padded(from.width);
            const Vec scale = all(from.scale), shift = all(from.shift);
            int64_t i = 0;
            for (; i + LANES <= from.width; i += LANES) store(into + i, from_bytes(raw + i) * scale + shift);
            if (i < from.width) {
                uint8_t some[LANES] = {};
                std::memcpy(some, raw + i, static_cast<size_t>(from.width - i));
                store(into + i, from_bytes(some) * scale + shift);
            }
            lines[s] = into;
        }
    }

    void forward(int64_t many) {
        for (int64_t k = 0; k < d_.depth; ++k) {
            const Layer &layer = d_.layers[k];
            const Place &own = layers_.get()[k];
            dots(own.lines, many, own.weight, layer.outputs, layer.inputs, own.has_bias ? own.bias : nullptr, own.value, own.out);
            if (layer.activation == NONE) continue;
            for (int64_t i = 0; i < many * own.out; i += LANES)
                store(own.value + i, activated(load(own.value + i), layer.activation));
        }
    }

    void loss_back(const int64_t *samples, int64_t many, float factor) {
        const Layer &layer = d_.layers[d_.depth - 1];
        const Place &own = layers_.get()[d_.depth - 1];
        for (int64_t s = 0; s < many; ++s) {
            const float *output = own.value + s * own.out;
            float *delta = deltas_.get() + s * own.out;
            if (d_.loss == CROSS_ENTROPY) {
                cross_entropy_back(output, layer.outputs, d_.samples->classes[samples[s]], factor, delta);
                continue;
            }
            const float *target = d_.samples->targets + samples[s] * layer.outputs;
            for (int64_t i = 0; i < layer.outputs; i += LANES) {
                const int64_t some = least(LANES, layer.outputs - i);
                const Vec x = load(output + i), y = load_first(target + i, some), none = all(0.0f);
                const Vec found = d_.loss == SQUARED ? x - y : (none - y) * sigmoid((none - y) * x);
                store(delta + i, if_less(lanes(), all(static_cast<float>(some)), found * all(factor), none));
            }
        }
    }

    void back(int64_t many, const Before &before, const int64_t *after, int64_t coming) {
        float *delta = deltas_.get(), *other = delta + widest(d_) * most_;
        for (int64_t k = d_.depth - 1; k >= first_; --k) {
            const Layer &layer = d_.layers[k];
            const Place &own = layers_.get()[k];
            if (layer.activation != NONE)
                for (int64_t i = 0; i < many * own.out; i += LANES)
                    store(delta + i, activated_back(load(delta + i), load(own.value + i), layer.activation));
            if (k > first_) {
                // Lines of the outputs, for the product with the weights as they were.
                const int64_t turned = padded(many);
                for (int64_t s = 0; s < many; ++s)
                    for (int64_t o = 0; o < layer.outputs; ++o) turned_.get()[o * turned + s] = delta[s * own.out + o];
                for (int64_t o = 0; o < layer.outputs; ++o) below_.get()[o] = own.weight + o * own.line;
                outers(turned_.get(), turned, many, below_.get(), layer.outputs, own.line, nullptr, other,
                       [](int64_t, int64_t) {});
            }
            Before own_before = before;
            if (layer.learns_weight) {
                if (before.centre) own_before.centre = before.centre + layer.weight, own_before.line = layer.inputs;
                outers(delta, own.out, layer.outputs, own.lines, many, layer.inputs, &own_before, own.weight,
                       [&](int64_t at, int64_t columns) { if (k == 0) fetch(after, coming, at, columns); });
            }
            if (layer.learns_bias) {
                if (before.centre) own_before.centre = before.centre + layer.bias;
                step_bias(k, delta, many, own_before);
            }
            float *last = delta;
            delta = other, other = last;
        }
    }

    // Asks for what the next step will read, while this one computes.
    void fetch(const int64_t *samples, int64_t many, int64_t at, int64_t columns) const {
        const Samples &from = *d_.samples;
        if (from.bytes) return;
        for (int64_t s = 0; s < many; ++s) {
            const float *line = static_cast<const float *>(from.features) + samples[s] * from.width + at;
            for (int64_t i = 0; i < columns && at + i < from.width; i += LANES) __builtin_prefetch(line + i, 0, 2);
        }
    }

    void step_bias(int64_t k, const float *delta, int64_t many, const Before &before) {
        const Place &own = layers_.get()[k];
        for (int64_t i = 0; i < d_.layers[k].outputs; i += LANES) {
            Vec total = all(0.0f), row = load(own.bias + i), centre = row;
            for (int64_t s = 0; s < many; ++s) total = total + load(delta + s * own.out + i);
            if (before.centre) centre = load_first(before.centre + i, least(LANES, d_.layers[k].outputs - i));
            store(own.bias + i, kept(row, before, centre, total));
        }
    }

    void write(int64_t device) {
        float *row = d_.result + device * d_.width;
        for (int64_t k = 0; k < d_.depth; ++k) {
            const Layer &layer = d_.layers[k];
            const Place &own = layers_.get()[k];
            for (int64_t o = 0; layer.weight >= 0 && o < layer.outputs; ++o)
                std::memcpy(row + layer.weight + o * layer.inputs, own.weight + o * own.line, bytes(layer.inputs));
            if (layer.bias >= 0) std::memcpy(row + layer.bias, own.bias, bytes(layer.outputs));
        }
    }

    const Descent &d_;
    int64_t most_, first_ = -1;  // samples of a step at most; the first layer that learns
    Memory<float> weights_;
    Memory<const float *> lines_;
    Memory<float> values_, deltas_, turned_, converted_;
    Memory<const float *> below_;
    Memory<int64_t> indices_;
    Memory<Place> layers_;
};

inline void work(const Descent &descent, palmette::Next next, void *counter) {
    Worker worker(descent);
    for (int64_t device = next(counter); device < descent.devices; device = next(counter)) worker.run(device);
}

}  // namespace
