// Protects a start on a device that fails while it is measured: the fault comes out, and nothing else happens.
#include <gtest/gtest.h>

#include "device/fault.h"
#include "spec/budget/measure.h"

namespace volley::spec {
namespace {

// Runs so many rounds; from then on everything that asks something of the device throws.
class LostExecutor final : public StepExecutor {
 public:
  explicit LostExecutor(int rounds) : rounds_(rounds) {}

  Status start_slot(int32_t, const SlotStart&) override { return ask(); }
  void clear_slot(int32_t) override { ask(); }
  void set_page(int32_t, size_t, int32_t, PageId) override {}
  void save_state(int32_t, PageId) override { ask(); }
  void restore_state(PageId, int32_t) override { ask(); }
  void copy_page(size_t, PageId, PageId) override { ask(); }
  const std::vector<kv::Group>& page_groups() const override { return groups_; }
  int32_t depth() const override { return 1; }
  int32_t under_way() const override { return 0; }
  Status enqueue(std::span<const RoundSegment> segments, const VerifyBudget&) override {
    --rounds_;
    results_.assign(segments.size(), {});
    return ask();
  }
  StepTimes wait(std::vector<RoundResult>& results) override {
    ask();
    results = results_;
    return {1e-3, 1e-3};
  }
  void discard(std::shared_ptr<MaskSource>) override {}
  int32_t most_shared_rows() const override { return 16; }
  const std::vector<int32_t>& row_buckets() const override { return none_; }
  const std::vector<int32_t>& draft_lengths() const override { return none_; }
  int32_t block_size() const override { return 4; }
  const PhaseTimes& times() const override { return times_; }
  int64_t experts_touched() const override { return 0; }

 private:
  Status ask() const {
    if (rounds_ < 0) throw DeviceFault("the device fell over");
    return {};
  }

  int rounds_;
  std::vector<RoundResult> results_;
  const std::vector<kv::Group> groups_;
  const std::vector<int32_t> none_;
  const PhaseTimes times_;
};

TEST(MeasureRound, AFaultComesOut) {
  MeasurePlan plan;
  plan.slots = 4;
  plan.max_rows = 16;
  plan.page_size = 16;
  plan.pages = 64;
  plan.max_model_len = 64;
  for (const int rounds : {0, 1, 6}) {
    LostExecutor round(rounds);
    EXPECT_THROW((void)measure_costs(round, plan, [](double) {}), DeviceFault);
  }
}

}  // namespace
}  // namespace volley::spec
