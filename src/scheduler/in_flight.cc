#include "scheduler/in_flight.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "scheduler/options.h"

namespace millrace {

Status BatchesInFlight::submit(BatchPlan& plan) {
  Batch& batch = plan.batch;
  batch.step = next_step_++;
  batch.copies = memory_.take_copies();
  std::vector<PageCopy> copies = batch.copies;
  const bool loads =
      std::ranges::any_of(copies, [](const PageCopy& copy) { return copy.direction == CopyDirection::kFromHost; });
  batch.weight_version = memory_.weight_version();
  const auto [step, weight_version] = std::pair(batch.step, batch.weight_version);
  if (Status status = runner_.submit(std::move(batch)); !status.ok()) {
    memory_.return_copies(std::move(copies));
    status = status.with_prefix("the step was refused");
    LOG_ERROR("scheduler: step {} with {} requests: {}", step, plan.rows.size(), status.to_string());
    return status;
  }
  for (const PlannedRows& row : plan.rows) {
    Sequence& sequence = *row.sequence;
    CHECK(!sequence.ended && row.count <= sequence.remaining());
    ++sequence.batches;
    sequence.scheduled += row.count;
    sequence.last_step = step;
    if (row.sample) {
      sequence.tokens.push_back(kTokenInFlight);
      ++sequence.pending;
    }
  }
  batches_.push_back({step, weight_version, std::move(plan.rows), plan.decodes > 0, loads, now_us_(), {}});
  return ok_status();
}

WorkInFlight BatchesInFlight::work() const {
  WorkInFlight work;
  if (batches_.empty()) return work;
  work.any = true;
  work.newest_step = batches_.back().step;
  work.with_decodes = static_cast<int32_t>(std::ranges::count_if(batches_, &BatchInFlight::decodes));
  return work;
}

BatchInFlight BatchesInFlight::take_oldest() {
  CHECK(!batches_.empty());
  BatchInFlight batch = std::move(batches_.front());
  batches_.pop_front();
  if (!batches_.empty()) batches_.front().begun_us = now_us_();
  memory_.release(batch.duplicates);
  return batch;
}

void BatchesInFlight::release_later(std::span<const PageId> pages) {
  if (batches_.empty()) return memory_.release(pages);
  std::vector<PageId>& later = batches_.back().duplicates;
  later.insert(later.end(), pages.begin(), pages.end());
}

// The newest batch in flight should not end before the next is there, but a request that arrives while it runs would
// have to wait for that one too: so it is planned late, a part of the expected time before the end, which is how wrong
// the expectation may be.
int BatchesInFlight::plan_in_ms(const StepCost& cost) const {
  if (batches_.empty()) return 0;
  int64_t end_us = batches_.front().begun_us;
  int64_t newest_us = 0;
  for (const BatchInFlight& batch : batches_) {
    int32_t rows = 0;
    for (const PlannedRows& row : batch.rows) rows += row.count;
    newest_us = static_cast<int64_t>(cost.predict_us(rows));
    end_us += newest_us;
  }
  const int64_t lead_us = std::max(kPlanLeadUs, newest_us / kPlanLeadPart);
  const int64_t early_us = end_us - lead_us - now_us_();
  return early_us > 0 ? static_cast<int>((early_us + 999) / 1000) : 0;
}

}  // namespace millrace
