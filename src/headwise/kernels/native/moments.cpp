// The sums of row measures, on all threads.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "call.h"
#include "export.h"
#include "moments.h"
#include "parallel.h"

namespace headwise {
namespace {

struct Work {
  const Moments& m;
  const Loop& loop;
  std::vector<Run> runs;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
};

std::vector<Run> runs_of(const Moments& m) {
  std::vector<Run> runs;
  for (int64_t b = 0; b < m.B; b++) {
    const int64_t *bin = m.bins + b * m.bins_stride, *segment = m.segments ? m.segments + b * m.segments_stride : nullptr;
    for (int64_t n = 0, from = 0; n < m.N; n++) {
      if (n + 1 < m.N && bin[n + 1] == bin[from] && (!segment || segment[n + 1] == segment[from])) continue;
      runs.push_back({b, from, n + 1, bin[from], b * m.S + (segment ? segment[from] : 0)});
      from = n + 1;
    }
  }
  return runs;
}

void run(void* data) {
  Work& work = *(Work*)data;
  float* const scratch = (float*)malloc(sizeof(float) * (work.m.N + 16));
  if (!scratch) {
    work.failed = true;
    return;
  }
  for (int64_t i; (i = work.next++) < work.m.K * work.m.H;) work.loop.sums(work.m, work.runs.data(), work.runs.size(), i, scratch);
  free(scratch);
}

}  // namespace
}  // namespace headwise

// 0, or 1 where there was no memory.
HW_EXPORT int32_t headwise_moments(const headwise::Moments* moments) {
  try {
    headwise::Work work{*moments, headwise::loop_of(moments->level), headwise::runs_of(*moments)};
    const bool small = (double)moments->K * moments->B * moments->H * moments->N < 1e5;
    headwise::run_on_threads(headwise::run, &work, small ? 1 : moments->threads);
    return work.failed;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}
