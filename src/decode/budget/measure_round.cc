#include "decode/budget/calibration.h"
#include "decode/budget/measure.h"
#include "device/fault.h"

namespace volley::decode {
namespace {

constexpr int32_t kWarmUps = 4;

// Runs rounds in the first slots, with almost no context.
class MadeUpRequests {
 public:
  MadeUpRequests(StepExecutor& round, const MeasurePlan& plan) : round_(round), plan_(plan) {}
  ~MadeUpRequests() {
    try {
      clear();
    } catch (const DeviceFault&) {  // that fault may be why this cleanup runs; no slots are left then
    }
  }

  Result<CostSample> run(const RoundShape& shape);

 private:
  Status start(int32_t slots);
  void clear();

  StepExecutor& round_;
  const MeasurePlan& plan_;
  const Calibrator calibrator_;
  int32_t running_ = 0, rounds_ = 0;  // slots in use, and rounds since they started
  std::vector<RoundSegment> segments_;
  std::vector<RoundResult> results_;
};

void MadeUpRequests::clear() {
  for (int32_t slot = 0; slot < running_; ++slot) round_.execute(ClearSlot{slot});
  running_ = 0;
}

Status MadeUpRequests::start(int32_t slots) {
  clear();
  SlotStart start;
  start.sampling.params.temperature = 0;
  start.sampling.prompt_length = 1;
  start.limits.max_tokens = plan_.rounds_per_start() + 1;
  const int32_t pages = plan_.pages_per_slot(round_.block_size());
  for (int32_t slot = 0; slot < slots; ++slot) {
    const TokenId token = slot % plan_.vocab;
    start.prompt = {&token, 1};
    VOLLEY_RETURN_IF_ERROR(round_.execute(StartSlot{slot, start}));
    ++running_;
    for (int32_t group = 0; group < std::ssize(round_.page_groups()); ++group) {
      // A window may have fewer pages. Page numbers wrap around, because the content does not matter.
      const int64_t of_group = round_.page_groups()[static_cast<size_t>(group)].pages;
      for (int32_t i = 0; i < pages; ++i) {
        const auto page = static_cast<int32_t>((int64_t{slot} * pages + i) % of_group);
        round_.execute(SetPage{slot, group, i, PageId(page)});
      }
    }
  }
  rounds_ = 0;
  return {};
}

Result<CostSample> MadeUpRequests::run(const RoundShape& shape) {
  if (running_ != shape.requests || rounds_ == plan_.rounds_per_start()) VOLLEY_RETURN_IF_ERROR(start(shape.requests));
  ++rounds_;
  segments_.clear();
  for (int32_t slot = 0; slot < shape.requests; ++slot) {
    RoundSegment segment;
    segment.slot = slot;
    segment.draft = shape.draft;
    segment.chooses = true;
    segment.simulate = SimulatedAcceptance{0.0f, 0.5f};
    segments_.push_back(segment);
  }
  VerifyBudget budget;
  budget.drafter = shape.drafter;
  if (shape.verify_rows < shape.requests * (shape.draft + 1)) {
    budget.rows = shape.verify_rows;
    budget.table = &calibrator_.table();
  }
  const int64_t touched = round_.experts_touched();
  VOLLEY_RETURN_IF_ERROR(round_.enqueue(segments_, budget));
  const StepTimes times = round_.wait(results_);
  const double counted = static_cast<double>(round_.experts_touched() - touched) / plan_.experts_share;
  return CostSample{shape, {times.draft, times.rest}, counted};
}

}  // namespace

Result<CostModel> measure_costs(StepExecutor& round, const MeasurePlan& plan,
                                const std::function<void(double)>& progress) {
  VOLLEY_CHECK(round.under_way() == 0 && round.block_size() > 1);
  const RoundGeometry geometry = {round.block_size(), round.draft_lengths(), round.row_buckets(),
                                  round.most_shared_rows()};
  MadeUpRequests requests(round, plan);
  for (int32_t i = 0; i < kWarmUps; ++i) {
    VOLLEY_ASSIGN([[maybe_unused]] const CostSample warm, requests.run({1, 0, 1, 0, 0}));
  }
  return measure_costs(
      geometry, plan, [&](const RoundShape& shape) { return requests.run(shape); }, progress);
}

}  // namespace volley::decode
