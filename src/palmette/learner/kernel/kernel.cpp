// The C interface: looks at what it is given once, then lets threads take one device after the other.
#if __has_include(<Python.h>)
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#endif

#include "kernel.h"

#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

extern "C" int64_t palmette_instructions(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return __builtin_cpu_supports("avx512f") ? 2 : 1;
#elif defined(__aarch64__)
    return 3;
#else
    return 0;
#endif
}

extern "C" int64_t palmette_descend(const Descent *descent, int64_t instructions, int64_t threads) {
    for (int64_t k = 0; k < descent->many; ++k) {
        const Plan *plan = descent->operations[k].plan;
        for (int64_t i = 0; plan && i < descent->devices; ++i) {
            const int64_t first = plan->first[i], count = plan->count[i];
            if (count < 1 || first < 0 || first > descent->samples->count - count) return 1 + i;
        }
    }
    std::atomic<int64_t> taken{0};
    std::atomic<bool> failed{false};
    const auto next = [](void *counter) { return static_cast<std::atomic<int64_t> *>(counter)->fetch_add(1); };
    const auto work = [&] {
        try {
            if (instructions == 1) palmette::descend_avx2(*descent, next, &taken);
            if (instructions == 2) palmette::descend_avx512(*descent, next, &taken);
            if (instructions == 3) palmette::descend_neon(*descent, next, &taken);
        } catch (const std::exception &) {  // there is no memory
            failed = true;
        }
    };
    std::vector<std::thread> others;
    try {
        for (int64_t i = 1; i < threads && i < descent->devices; ++i) others.emplace_back(work);
    } catch (const std::system_error &) {  // no more threads to be had: fewer do the same
    }
    work();
    for (std::thread &other : others) other.join();
    return failed ? -1 : 0;
}

extern "C" double palmette_multiply_add(int64_t rounds, int64_t instructions) {
    float result = 0.5f;
    if (instructions == 1) return palmette::rate_avx2(rounds, &result);
    if (instructions == 2) return palmette::rate_avx512(rounds, &result);
    return instructions == 3 ? palmette::rate_neon(rounds, &result) : 0;
}

#if defined(Py_LIMITED_API)
// Nobody imports the library, but what looks through all modules of a package must not stumble over it.
PyMODINIT_FUNC PyInit_library(void) {
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, "library", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
    return PyModule_Create(&module);
}
#endif
