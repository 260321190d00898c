// Work shared out over the threads that torch's own operations use.
#pragma once
#include <cstdint>

namespace headwise {

// Runs body(data) on up to `threads` threads, this one among them; on one where torch's OpenMP runtime is not found.
void run_on_threads(void (*body)(void*), void* data, int64_t threads);
bool threads_found();

}  // namespace headwise
