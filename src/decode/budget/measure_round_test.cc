// Protects a start on a device that fails while it is measured: the fault is reported, and nothing else happens.
#include <gtest/gtest.h>

#include "decode/budget/measure.h"
#include "device/fault.h"

namespace volley::decode {
namespace {

// Throws from every call that uses the device, once a number of rounds has run.
class LostExecutor final : public StepExecutor {
 public:
  explicit LostExecutor(int rounds) : rounds_(rounds) {
    traits_.block_size = 4;
    traits_.most_shared_rows = 16;
  }

  Answer perform(const Command& command) override {
    const auto* step = std::get_if<Enqueue>(&command);
    if (step != nullptr) {
      --rounds_;
      results_.results.assign(step->segments.size(), {});
      results_.times = {1e-3, 1e-3};
    }
    if (rounds_ < 0 && !std::holds_alternative<SetPage>(command)) throw DeviceFault("the device fell over");
    if (std::holds_alternative<Wait>(command)) return results_;
    return step != nullptr || std::holds_alternative<StartSlot>(command) ? Answer(Status()) : Answer();
  }
  const std::vector<kv::Group>& page_groups() const override { return groups_; }
  int32_t under_way() const override { return 0; }
  void discard(std::shared_ptr<MaskSource>) override {}
  const PhaseTimes& times() const override { return results_.phases; }
  int64_t experts_touched() const override { return 0; }

 private:
  int rounds_;
  StepResults results_;
  const std::vector<kv::Group> groups_;
};

TEST(MeasureRound, AFaultComesOut) {
  const MeasurePlan plan{.slots = 4, .max_rows = 16, .page_size = 16, .pages = 64, .max_model_len = 64};
  for (const int rounds : {0, 1, 6}) {
    LostExecutor round(rounds);
    EXPECT_THROW((void)measure_costs(round, plan, [](double) {}), DeviceFault);
  }
}

}  // namespace
}  // namespace volley::decode
