// A second pool of threads would fight with torch's for the cores, so its OpenMP runtime is looked up in the process;
// nothing is linked against.
#include "parallel.h"

#if defined(__linux__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace headwise {
namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

Parallel openmp() {
#if defined(__linux__) || defined(__APPLE__)
  static const Parallel found = (Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel");
  return found;
#else
  return nullptr;
#endif
}

}  // namespace

bool threads_found() { return openmp() != nullptr; }

void run_on_threads(void (*body)(void*), void* data, int64_t threads) {
  if (threads > 1 && openmp()) openmp()(body, data, (unsigned)threads, 0);
  else body(data);
}

}  // namespace headwise
