// Which rows count, and how far before the own key the largest weight lies: one pass over the rows of a call.
#include <atomic>
#include <cmath>

#include "export.h"
#include "moments.h"
#include "parallel.h"

namespace headwise {
namespace {

struct Work {
  const Tally& t;
  std::atomic<int64_t> next{0};
};

void head(const Tally& t, int64_t h) {
  double* const histogram = t.histogram + h * (t.offsets + 1);
  int64_t counted = 0, masked = 0, padded = 0, broken = 0, elsewhere = 0;
  for (int64_t b = 0; b < t.B; b++) {
    const int64_t start = (b * t.H + h) * t.N;
    const int64_t* const visible = t.visible + b * t.visible_stride[0] + h * t.visible_stride[1];
    const int64_t* const own = t.own + b * t.own_stride[0];
    const uint8_t *const real = t.real + b * t.real_stride[0], *const only = t.only ? t.only + b * t.only_stride[0] : nullptr;
    for (int64_t n = 0; n < t.N; n++) {
      const bool sees = visible[n * t.visible_stride[2]] >= 1, is_real = real[n * t.real_stride[1]];
      const bool asked = !only || only[n * t.only_stride[1]], whole = std::isfinite(t.max_score[start + n]) && !std::isnan(t.lse[start + n]);
      const bool counts = asked & is_real & sees & whole;
      t.counted[start + n] = counts;
      counted += counts;
      masked += asked & is_real & !sees;
      padded += asked & !is_real;
      broken += asked & is_real & sees & !whole;
      const int64_t self = own[n * t.own_stride[1]], offset = self - t.argmax[start + n] - t.first_offset;
      if (!counts | (self < 0)) continue;
      if ((uint64_t)offset < (uint64_t)t.offsets) histogram[offset] += 1;
      else elsewhere++;
    }
  }
  histogram[t.offsets] += (double)elsewhere;
  const int64_t kinds[4] = {counted, masked, padded, broken};
  for (int i = 0; i < 4; i++) t.counts[i * t.H + h] = (double)kinds[i];
}

void run(void* data) {
  Work& work = *(Work*)data;
  for (int64_t h; (h = work.next++) < work.t.H;) head(work.t, h);
}

}  // namespace
}  // namespace headwise

HW_EXPORT void headwise_tally(const headwise::Tally* tally) {
  headwise::Work work{*tally};
  const bool small = (double)tally->B * tally->H * tally->N < 1e5;
  headwise::run_on_threads(headwise::run, &work, small ? 1 : tally->threads);
}
