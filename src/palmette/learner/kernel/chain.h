// The descent of one device after the other. Included once for each instruction set, which says what a `Vec` is.
#pragma once
#include <cstdlib>
#include <new>

#include "batches.h"
#include "products.h"

namespace {

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

// The batches of one operation: those of this step, and those of the next.
struct Coming {
    Batches batches;
    int64_t *now, *after, many, next;
};

// Asks for what the next step will read, line by line of the cache, while this one computes: memory is far slower than a core.
class Ahead {
public:
    Ahead() = default;
    Ahead(const Samples &from, const int64_t *samples, int64_t many, int64_t times)
        : from_(&from), sample_(samples), end_(samples + (from.bytes ? 0 : many)),
          each_(blocks(many * blocks(from.width, LANES), times)) {}

    void operator()() {
        for (int64_t i = 0; i < each_ && sample_ != end_; ++i) {
            __builtin_prefetch(static_cast<const float *>(from_->features) + *sample_ * from_->width + at_, 0, 2);
            at_ += LANES;
            if (at_ >= from_->width) at_ = 0, ++sample_;
        }
    }

private:
    const Samples *from_ = nullptr;
    const int64_t *sample_ = nullptr, *end_ = nullptr;
    int64_t each_ = 0, at_ = 0;
};

class Worker {
public:
    explicit Worker(const Descent &d)
        : d_(d), most_(largest_batch(d)), model_(total(d, true)), weights_(d.models * model_), lines_(d.depth * most_),
          values_(total(d, false) * most_), deltas_(2 * widest(d) * most_), turned_(widest(d) * padded(most_)),
          converted_(d.samples->bytes ? padded(d.samples->width) * most_ : 1), below_(widest(d)), factors_(FEW_ROWS * most_), few_(FEW_ROWS * most_),
          indices_(2 * most_ * d.many), coming_(d.many), layers_(d.depth) {
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
            for (int64_t s = 0; k && s < most_; ++s) own.lines[s] = layers_.get()[k - 1].value + s * layers_.get()[k - 1].out;
            for (int64_t m = 0; m < d.models; ++m) {
                if (layer.frozen_weight) read_weight(m, k, layer.frozen_weight);
                if (layer.frozen_bias) std::memcpy(own.bias + m * model_, layer.frozen_bias, bytes(layer.outputs));
            }
            if (first_ < 0 && (layer.learns_weight || layer.learns_bias)) first_ = k;
        }
    }

    void run(int64_t device) {
        const int64_t end = least(d_.end, d_.steps[device]), line = d_.models * d_.width;
        if (d_.begin < end && first_ >= 0) descend(device, end);
        else std::memmove(d_.result + device * line, d_.start + device * d_.start_line, bytes(line));
    }

private:
    struct Place {
        float *weight, *bias;   // of the first model: weights with lines of `line`
        float *value;           // outputs with lines of `out`
        const float **lines;    // where the inputs of each sample lie
        int64_t line, out;
        bool has_bias;
    };

    static size_t bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }
    static int64_t largest_batch(const Descent &d) {
        int64_t found = 1;
        for (int64_t k = 0; k < d.many; ++k)
            if (d.operations[k].plan && d.operations[k].plan->size > found) found = d.operations[k].plan->size;
        return found;
    }
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

    void read_weight(int64_t model, int64_t k, const float *from) {
        const Layer &layer = d_.layers[k];
        const Place &own = layers_.get()[k];
        float *into = own.weight + model * model_;
        for (int64_t o = 0; o < layer.outputs; ++o) {
            std::memcpy(into + o * own.line, from + o * layer.inputs, bytes(layer.inputs));
            std::memset(into + o * own.line + layer.inputs, 0, bytes(own.line - layer.inputs));
        }
    }

    void read(int64_t device) {
        for (int64_t m = 0; m < d_.models; ++m) {
            const float *row = d_.start + device * d_.start_line + m * d_.width;
            for (int64_t k = 0; k < d_.depth; ++k) {
                const Layer &layer = d_.layers[k];
                if (layer.weight >= 0) read_weight(m, k, row + layer.weight);
                if (layer.bias >= 0)
                    std::memcpy(layers_.get()[k].bias + m * model_, row + layer.bias, bytes(layer.outputs));
            }
        }
    }

    void write(int64_t device) {
        for (int64_t m = 0; m < d_.models; ++m) {
            float *row = d_.result + (device * d_.models + m) * d_.width;
            for (int64_t k = 0; k < d_.depth; ++k) {
                const Layer &layer = d_.layers[k];
                const Place &own = layers_.get()[k];
                const float *weight = own.weight + m * model_;
                for (int64_t o = 0; layer.weight >= 0 && o < layer.outputs; ++o)
                    std::memcpy(row + layer.weight + o * layer.inputs, weight + o * own.line, bytes(layer.inputs));
                if (layer.bias >= 0) std::memcpy(row + layer.bias, own.bias + m * model_, bytes(layer.outputs));
            }
        }
    }

    void descend(int64_t device, int64_t end) {
        const Before before{static_cast<float>(d_.pull[device * d_.each]), static_cast<float>(d_.decay[device * d_.each]),
                            d_.centre ? d_.centre + device * d_.centre_line : nullptr, 0};
        read(device);
        for (int64_t k = 0; k < d_.many; ++k) {
            if (!d_.operations[k].plan) continue;
            int64_t *indices = indices_.get() + 2 * most_ * k;
            coming_.get()[k] = {Batches(*d_.operations[k].plan, device), indices, indices + most_, 0, 0};
            coming_.get()[k].many = coming_.get()[k].batches.take(d_.begin, indices);
        }
        for (int64_t step = d_.begin; step < end; ++step)
            for (int64_t k = 0; k < d_.many; ++k) {
                const Operation &what = d_.operations[k];
                const double number = what.number[device * what.each];
                if (what.plan) move(what, number, before, coming_.get()[k], step, end);
                else mix(what, static_cast<float>(number));
            }
        write(device);
    }

    void move(const Operation &what, double rate, const Before &before, Coming &own, int64_t step, int64_t end) {
        own.next = step + 1 < end ? own.batches.take(step + 1, own.after) : 0;
        const Layer &layer = d_.layers[0];
        const int64_t backward = layer.learns_weight ? many_outers(layer.outputs, layer.inputs) : 0;
        Ahead ahead(*d_.samples, own.after, own.next, many_dots(own.many, layer.outputs) + backward);
        place(own.now, own.many);
        forward(what.at * model_, own.many, ahead);
        loss_back(own.now, own.many, static_cast<float>(-rate / static_cast<double>(own.many)));
        back(what.at * model_, what.into * model_, own.many, before, ahead);
        int64_t *last = own.now;
        own.now = own.after, own.after = last, own.many = own.next;
    }

    // As torch.lerp does it: the ends of the range are the models themselves.
    void mix(const Operation &what, float share) {
        float *into = weights_.get() + what.into * model_;
        const float *one = weights_.get() + what.at * model_, *other = weights_.get() + what.other * model_;
        if (what.other < 0) std::memmove(into, one, bytes(model_));
        for (int64_t i = 0; what.other >= 0 && i < model_; i += LANES) {
            const Vec a = load(one + i), b = load(other + i), apart = a - b;
            store(into + i, share < 0.5f ? fma(all(share), apart, b) : fma(all(share - 1.0f), apart, a));
        }
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

    // `model` is how far a model lies from the first one, as are `at` and `into` further down.
    void forward(int64_t model, int64_t many, Ahead &ahead) {
        for (int64_t k = 0; k < d_.depth; ++k) {
            const Layer &layer = d_.layers[k];
            const Place &own = layers_.get()[k];
            dots(own.lines, many, own.weight + model, layer.outputs, layer.inputs, own.has_bias ? own.bias + model : nullptr,
                 own.value, own.out, [&] { if (k == 0) ahead(); });
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

    void back(int64_t at, int64_t into, int64_t many, const Before &before, Ahead &ahead) {
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
                for (int64_t o = 0; o < layer.outputs; ++o) below_.get()[o] = own.weight + at + o * own.line;
                outers(turned_.get(), turned, many, below_.get(), layer.outputs, own.line, nullptr, other,
                       [] {});
            }
            Before own_before = before;
            if (layer.learns_weight) {
                if (before.centre) own_before.centre = before.centre + layer.weight, own_before.line = layer.inputs;
                const auto next = [&] { if (k == 0) ahead(); };
                const Few few{factors_.get(), few_.get()};
                if (layer.activation != RELU || !few_outers(delta, own.out, layer.outputs, own.lines, many, layer.inputs,
                                                            &own_before, own.weight + into, few, next))
                    outers(delta, own.out, layer.outputs, own.lines, many, layer.inputs, &own_before, own.weight + into, next);
            }
            if (layer.learns_bias) {
                if (before.centre) own_before.centre = before.centre + layer.bias;
                step_bias(k, own.bias + into, delta, many, own_before);
            }
            float *last = delta;
            delta = other, other = last;
        }
    }

    void step_bias(int64_t k, float *bias, const float *delta, int64_t many, const Before &before) {
        const Place &own = layers_.get()[k];
        for (int64_t i = 0; i < d_.layers[k].outputs; i += LANES) {
            Vec total = all(0.0f), row = load(bias + i), centre = row;
            for (int64_t s = 0; s < many; ++s) total = total + load(delta + s * own.out + i);
            if (before.centre) centre = load_first(before.centre + i, least(LANES, d_.layers[k].outputs - i));
            store(bias + i, kept(row, before, centre, total));
        }
    }

    const Descent &d_;
    int64_t most_, model_, first_ = -1;  // samples of a step at most; numbers of a model; the first layer that learns
    Memory<float> weights_;
    Memory<const float *> lines_;
    Memory<float> values_, deltas_, turned_, converted_;
    Memory<const float *> below_;
    Memory<float> factors_;
    Memory<const float *> few_;
    Memory<int64_t> indices_;
    Memory<Coming> coming_;
    Memory<Place> layers_;
};

inline void work(const Descent &descent, palmette::Next next, void *counter) {
    Worker worker(descent);
    for (int64_t device = next(counter); device < descent.devices; device = next(counter)) worker.run(device);
}

}  // namespace
