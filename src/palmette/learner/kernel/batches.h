// The addressed batches of one device: the same whole numbers as palmette/learner/batches.py, one step at a time.
#pragma once
#include <cstdint>

#include "kernel.h"

namespace {

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline uint64_t mix(uint64_t base, uint64_t counter) {
    uint64_t value = (counter + 1) * 0x9E3779B97F4A7C15u + base;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

// One shuffled pass over n samples: place -> (stride * place + offset) mod n.
struct Pass {
    int64_t number = -1, stride = 0, offset = 0;

    void become(int64_t wanted, uint64_t address, const int64_t *primes, int64_t n) {
        if (number == wanted) return;
        const uint64_t key = mix(address, static_cast<uint64_t>(wanted));
        number = wanted;
        stride = primes[key & 255] % n;
        offset = static_cast<int64_t>(mix(key, 0) & ((uint64_t{1} << 62) - 1)) % n;
    }
};

class Batches {
public:
    Batches(const Plan &plan, int64_t device)
        : plan_(&plan), address_(plan.address[device]), count_(plan.count[device]), first_(plan.first[device]) {}

    // Writes the samples of a step and returns how many they are.
    int64_t take(int64_t step, int64_t *samples) {
        const int64_t size = least(plan_->size, count_);
        if (plan_->whole || count_ < plan_->size) {
            for (int64_t i = 0; i < size; ++i) samples[i] = first_ + i;
            return size;
        }
        step = plan_->same ? 0 : plan_->begin + step;
        int64_t pass, within, real = size;
        if (plan_->epochs) {
            const int64_t each = (count_ + size - 1) / size;
            pass = step / each;
            within = (step - pass * each) * size;
            real = least(count_ - within, size);
        } else {
            pass = step * size / count_;
            within = step * size - pass * count_;
        }
        const int64_t before = least(real, count_ - within);
        walk(pass, within, samples, before);
        if (before < real) walk(pass + 1, 0, samples + before, real - before);
        return real;
    }

private:
    void walk(int64_t pass, int64_t place, int64_t *samples, int64_t many) {
        pass_.become(pass, address_, plan_->primes, count_);
        int64_t at = (pass_.stride * place + pass_.offset) % count_;
        for (int64_t i = 0; i < many; ++i) {
            samples[i] = first_ + at;
            at += pass_.stride;
            if (at >= count_) at -= count_;
        }
    }

    const Plan *plan_;
    uint64_t address_;
    int64_t count_, first_;
    Pass pass_;
};

}  // namespace
