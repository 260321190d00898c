// The entry: which instruction set, which rows on which thread, and the floating-point state of each.
#include <atomic>
#include <cstdlib>

#include "call.h"
#include "export.h"
#include "parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace portable { extern const headwise::Loop loop; }
#ifdef HW_X86
namespace avx2 { extern const headwise::Loop loop; }
namespace avx512 { extern const headwise::Loop loop; }
#endif

namespace headwise {

bool stacks_heads(const Call& a) {
  // With few rows a head, the heads that share keys fill a vector together; a mask by head keeps them apart.
  return a.G > 1 && a.N < 64 && (!a.mask_kind || !a.mask_stride[1]);
}

namespace {

// Denormal numbers cost a hundred times the time of others, and are nothing here. Torch shares these threads, so the
// state of each is put back.
class FlushToZero {
 public:
#if defined(__x86_64__)
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushToZero() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    const uint64_t with = before_ | (1u << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(with));
  }
  ~FlushToZero() { __asm__ volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_;
#endif
};

struct Work {
  const Call& call;
  const Loop& loop;
  int64_t groups, blocks;
  std::atomic<int64_t> next{0}, next_check{0};
  std::atomic<int32_t> outcome{kDone};
};

void run(void* data) {
  Work& work = *(Work*)data;
  const Call& a = work.call;
  const FlushToZero flush;
  const size_t bytes = (work.loop.scratch(a) + 63) / 64 * 64;
  char* memory = (char*)malloc(bytes + 64);
  if (!memory) {
    work.outcome = kNoMemory;
    return;
  }
  char* scratch = (char*)(((uintptr_t)memory + 63) / 64 * 64);
  const int64_t kv_heads = a.H / a.G;
  for (int64_t i; work.outcome == kDone && (i = work.next_check++) < a.B * kv_heads;)
    if (!work.loop.finite(a, i / kv_heads, i % kv_heads)) work.outcome = kNotFinite;
  const int64_t each = work.blocks, rows = work.loop.rows(a), all = a.B * work.groups * each;
  for (int64_t i; work.outcome == kDone && (i = work.next++) < all;) {
    // Under causality the last rows have the most to do: they come first.
    const int64_t which = i / each, r0 = (each - 1 - i % each) * rows;
    if (!work.loop.block(a, which / work.groups, which % work.groups, r0, scratch)) work.outcome = kNotFinite;
  }
  free(memory);
}

}  // namespace

const Loop& loop_of(int32_t level) {
#ifdef HW_X86
  if (level >= 2) return avx512::loop;
  if (level == 1) return avx2::loop;
#endif
  (void)level;
  return portable::loop;
}

}  // namespace headwise

// The best level that this machine runs: see Call::level.
HW_EXPORT int32_t headwise_level() {
#ifdef HW_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

// 1 if torch's OpenMP runtime was found; 0: one thread.
HW_EXPORT int32_t headwise_threaded() { return headwise::threads_found(); }

// What it was built from, so that the two sides of the ABI can check each other.
HW_EXPORT uint32_t headwise_sources() { return HW_SOURCES; }

HW_EXPORT int32_t headwise_run(const headwise::Call* call) {
  using namespace headwise;
  const Loop& loop = loop_of(call->level);
  const int64_t rows = loop.rows(*call);
  const bool stacked = stacks_heads(*call);
  const int64_t all = stacked ? call->G * call->N : call->N;
  Work work{*call, loop, stacked ? call->H / call->G : call->H, (all + rows - 1) / rows};
  const int64_t tasks = call->B * work.groups * work.blocks;
  int64_t threads = call->threads < tasks ? call->threads : tasks;
  // Waking threads costs more than a small call takes.
  if ((double)call->B * call->H * call->N * call->M * (call->d_k + call->d_v) < 1e6) threads = 1;
  run_on_threads(run, &work, threads);
  return work.outcome;
}
