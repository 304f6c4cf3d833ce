// Compares the memory that loading and a step take with the plan's.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "device/dry_run.h"
#include "engine/device_testing.h"
#include "engine/start/round_setup.h"

namespace volley::engine {
namespace {

// The same tests run on each device (CMakeLists.txt).
const std::string kTestDevice =
    std::getenv("VOLLEY_TEST_DEVICE") == nullptr ? "cpu" : std::getenv("VOLLEY_TEST_DEVICE");

// Loads kernels with the program: their memory is not measured here.
const int eager = setenv("CUDA_MODULE_LOADING", "EAGER", 1);

EngineOptions pocket() {
  EngineOptions options;
  options.device = kTestDevice;
  options.model_dir = "models/pocket";
  options.draft_dir = "models/pocket-dflash";
  options.dummy_weights = 1;
  options.threads = 2;
  options.kv_pages = 300;
  return options;
}

// Models on a device whose memory is counted.
struct Loaded {
  ResolvedModels models;
  std::unique_ptr<WatchedDevice> device;
  LoadedModels loaded;
};

Loaded load(const EngineOptions& options) {
  auto models = resolve_models(options);
  VOLLEY_CHECK_MSG(models.ok(), models.error().message);
  auto device = std::make_unique<WatchedDevice>(std::move(make_device(models->device, options.threads)).value());
  auto loaded = load_models(*device, *models, 0, {});
  VOLLEY_CHECK_MSG(loaded.ok(), loaded.error().message);
  return {std::move(models).value(), std::move(device), std::move(loaded).value()};
}

// Recorded steps lie in the driver's memory, which is estimated. They take what was planned, up to pieces of 2 MiB.
// This test is first, because the driver keeps memory that was once a graph's.
TEST(StepMemory, HoldsRecordedSteps) {
  if (kTestDevice != "cuda") GTEST_SKIP() << "the CPU records none";
  if (const auto device = resolve_device(kTestDevice); !device.ok()) GTEST_SKIP() << device.error().message;
  EngineOptions options = pocket();
  options.max_num_seqs = 128;
  options.kv_pages = 8000;
  const auto models = resolve_models(options);
  ASSERT_TRUE(models.ok()) << models.error().message;
  const MemoryPlan& plan = models->memory;
  const auto device = std::move(make_device(models->device, options.threads)).value();
  const int64_t free_before = examine_cuda_device(0)->free_bytes;
  auto loaded = load_models(*device, *models, 0, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const int64_t free_between = examine_cuda_device(0)->free_bytes;
  const auto round = make_round(*device, options, *models, *loaded, {});
  ASSERT_TRUE(round.ok()) << round.error().message;
  const int64_t free_after = examine_cuda_device(0)->free_bytes;
  const int64_t planned = plan.weight_bytes + plan.kv_bytes() + plan.page_bytes() + plan.step_bytes + plan.graph_bytes;
  const auto taken = static_cast<double>(free_before - free_after);
  EXPECT_LE(taken, 1.03 * static_cast<double>(planned));
  EXPECT_GE(taken, 0.97 * static_cast<double>(planned));
  const auto graphs = static_cast<double>(free_between - free_after - plan.step_bytes);
  EXPECT_LE(graphs, 1.1 * static_cast<double>(plan.graph_bytes));
  EXPECT_GE(graphs, 0.8 * static_cast<double>(plan.graph_bytes));
  std::printf("taken %.1f MiB of %.1f, for recorded steps %.1f of %.1f\n", taken / 0x1p20, planned / 0x1p20,
              graphs / 0x1p20, plan.graph_bytes / 0x1p20);
}

// The plan knows a model's weights and pages to the byte before any weight is read.
TEST(LoadedMemory, IsWhatWasPlanned) {
  if (const auto device = resolve_device(kTestDevice); !device.ok()) GTEST_SKIP() << device.error().message;
  const auto expect_planned = [](const char* name, const EngineOptions& options) {
    const Loaded world = load(options);
    const MemoryPlan& plan = world.models.memory;
    EXPECT_EQ(world.device->bytes(), plan.weight_bytes + plan.kv_bytes() + plan.page_bytes())
        << name << "; the last are the scrap pages";
  };
  EngineOptions options = pocket();
  expect_planned("as it comes", options);
  options.second_draft_dir = options.draft_dir;
  expect_planned("with two drafters", options);
  options.second_draft_dir.clear();
  options.dtype = ComputeType::kFloat32;
  options.dummy_weights.reset();
  expect_planned("in fp32", options);
  options.speculation = Speculation::kOff;
  options.model_dir = "tests/data/targets/narrow_fp32";
  expect_planned("fp32 weights, plain", options);
}

// Every slot has its states of recurrent layers, with a tape for the drafts of a block.
TEST(LoadedMemory, StatesArePlannedToTheByte) {
  if (const auto device = resolve_device(kTestDevice); !device.ok()) GTEST_SKIP() << device.error().message;
  EngineOptions options = pocket();
  options.model_dir = "tests/data/targets/hybrid_wide";
  options.dummy_weights.reset();
  options.speculation = Speculation::kOff;
  int64_t plain = 0;
  for (const int32_t slots : {1, 5}) {
    options.max_num_seqs = slots;
    const Loaded world = load(options);
    const MemoryPlan& plan = world.models.memory;
    EXPECT_EQ(world.device->bytes(),
              plan.weight_bytes + plan.kv_bytes() + plan.page_bytes() + plan.state_bytes + plan.snapshot_bytes);
    // Two layers have 6 heads of 16 x 16 in fp32, and 3 rows of 160 channels; the rest is the cursor and alignment.
    const int64_t least = 2 * (6 * 16 * 16 + 3 * 160) * int64_t{sizeof(float)};
    EXPECT_GE(plan.state_bytes, slots * least);
    EXPECT_LE(plan.state_bytes, slots * (least + 2 * 4 * 64));
    EXPECT_EQ(plan.state_bytes % slots, 0);
    plain = plan.state_bytes / slots;
    auto round = make_round(*world.device, options, world.models, const_cast<LoadedModels&>(world.loaded), {});
    ASSERT_TRUE(round.ok()) << round.error().message;
    EXPECT_EQ(world.device->bytes(), plan.weight_bytes + plan.kv_bytes() + plan.page_bytes() + plan.state_bytes +
                                         plan.snapshot_bytes + plan.step_bytes);
    EXPECT_EQ(plan.snapshots, 2 * slots);
    EXPECT_EQ(plan.snapshot_bytes, 2 * plan.state_bytes);
  }
  model::KvLayout drafting;
  const auto target = families::read_target(options.model_dir);
  ASSERT_TRUE(target.ok());
  model::add_states(target->decoder, 1, 15, DType::kF32, drafting);
  const int64_t tape = 2 * 15 * (160 + 2 * 6) * int64_t{sizeof(float)};
  EXPECT_NEAR(static_cast<double>(drafting.state_bytes()), static_cast<double>(plain + tape), 2 * 3 * 64);
}

// A request takes one state and one tape, with no copy a position. The numbers are a published model's layers, in MiB.
TEST(RecurrentStates, TakeWhatOneStateAndATapeDo) {
  struct Published {
    const char* name;
    int layers, k_heads, v_heads;
    double state, tape;  // tape: projected rows of a block of 16 and the 3 before it
  };
  for (const Published& model :
       {Published{"4B, 9B", 24, 16, 32, 49, 7.2}, Published{"35B-A3B", 30, 16, 32, 61.4, 9.0},
        Published{"Coder-Next", 36, 16, 32, 73.7, 10.9}, Published{"27B", 48, 16, 48, 146.8, 18.1},
        Published{"122B", 36, 16, 64, 146.5, 16.4}}) {
    const ops::DeltaShape shape = {model.k_heads, model.v_heads, 128, 128, 4};
    const auto mib = [&](int32_t tape_rows) {
      const int64_t bytes = model.layers * ops::delta_state_bytes(shape, tape_rows, DType::kBF16);
      return static_cast<double>(bytes) / (1 << 20);
    };
    EXPECT_NEAR(mib(0), model.state, 0.05 * model.state) << model.name;
    // Both figures include the 3 rows before the block.
    const double rows_before = 3.0 / 19.0 * model.tape;
    EXPECT_NEAR(mib(15), model.state + model.tape - rows_before, 0.05 * model.state) << model.name;
  }
}

// Without a mapping, the embedding table that a CPU reads in place takes memory, too.
TEST(LoadedMemory, CountsWhatIsReadInsteadOfMapped) {
  EngineOptions options = pocket();
  options.device = "cpu";
  options.dummy_weights.reset();
  const auto mapped = resolve_models(options);
  options.mmap = false;
  const auto read = resolve_models(options);
  ASSERT_TRUE(mapped.ok() && read.ok());
  const model::Decoder& target = read->target.decoder;
  EXPECT_EQ(read->memory.weight_bytes - mapped->memory.weight_bytes,
            model::embedding_param(target).elements() *
                static_cast<int64_t>(dtype_size(read->target_checkpoint->main_dtype())));
}

// What an MTP head keeps for the slots counts as a step's memory.
TEST(LoadedMemory, WhatADrafterCarriesIsPlanned) {
  if (const auto device = resolve_device(kTestDevice); !device.ok()) GTEST_SKIP() << device.error().message;
  EngineOptions options = pocket();
  options.model_dir = "tests/data/targets/hybrid_tied";
  options.draft_dir = "tests/data/mtp/hybrid_tied";
  options.dummy_weights.reset();
  options.max_num_seqs = 5;
  const Loaded world = load(options);
  const MemoryPlan& plan = world.models.memory;
  EXPECT_GT(world.loaded.drafters.at(0).proposer->slot_bytes(), 0);
  auto round = make_round(*world.device, options, world.models, const_cast<LoadedModels&>(world.loaded), {});
  ASSERT_TRUE(round.ok()) << round.error().message;
  EXPECT_EQ(world.device->bytes(), plan.weight_bytes + plan.kv_bytes() + plan.page_bytes() + plan.state_bytes +
                                       plan.snapshot_bytes + plan.step_bytes);
}

// Names the sizes of a step that change its memory.
std::vector<std::pair<const char*, EngineOptions>> step_sizes() {
  std::vector<std::pair<const char*, EngineOptions>> sizes;
  EngineOptions options = pocket();
  const auto add = [&](const char* name) { sizes.emplace_back(name, options); };
  add("as it comes");
  options.max_num_seqs = 200;
  add("many slots");
  options.max_num_batched_tokens = 300;
  add("fewer rows than the slots' blocks");
  options.max_num_batched_tokens = 0;
  options.max_num_seqs = 1;
  options.prefill_chunk = 16;
  add("one request");
  options.prefill_chunk = 4096;
  add("long chunks");
  options.speculation = Speculation::kOff;
  add("plain");
  options.dtype = ComputeType::kFloat32;
  add("in fp32");
  return sizes;
}

// Runs steps that fill a pass: prompts in all slots, with the logprobs of one; then blocks in all slots but one and a
// prompt's chunk beside them; then blocks in all slots.
void run_large_steps(decode::Round& round, const ResolvedModels& models) {
  const int32_t slots = models.max_num_seqs, block = round.block_size(), rows = models.max_num_batched_tokens;
  const std::vector<TokenId> tokens(static_cast<size_t>(rows), 7);
  std::vector<decode::RoundResult> results;
  const auto run = [&](const std::vector<decode::RoundSegment>& segments) {
    ASSERT_TRUE(round.enqueue(segments).ok());
    round.wait(results);
  };
  int32_t next_page = 0;
  const auto start = [&](int32_t slot, int32_t prompt) {
    decode::SlotStart start;
    start.prompt = std::span(tokens).first(static_cast<size_t>(prompt));
    start.limits.max_tokens = 1000;
    start.sampling.prompt_length = prompt;
    ASSERT_TRUE(round.execute(decode::StartSlot{slot, start}).ok());
    const int32_t pages = (prompt + 8 * block + models.page_size - 1) / models.page_size;
    for (int32_t i = 0; i < pages; ++i) round.execute(decode::SetPage{slot, 0, i, PageId(next_page++)});
    ASSERT_LE(next_page, models.memory.pages());
  };
  const auto chunk = [&](int32_t slot, int32_t n) {
    decode::RoundSegment segment;
    segment.slot = slot;
    segment.start = 0;
    segment.known = std::span(tokens).first(static_cast<size_t>(n));
    segment.scored = segment.known.first(static_cast<size_t>(n) - 1);
    segment.chooses = true;
    return segment;
  };
  const auto decode = [&](int32_t n) {
    std::vector<decode::RoundSegment> segments(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
      segments[i].slot = i;
      segments[i].draft = block - 1;
      segments[i].chooses = true;
    }
    return segments;
  };
  for (int32_t slot = 0; slot + 1 < slots; ++slot) {
    start(slot, 4);
    run({chunk(slot, 4)});
  }
  const int32_t rest = std::min(rows - (slots - 1) * block, models.max_model_len - block);
  start(slots - 1, rest);
  std::vector<decode::RoundSegment> segments = decode(slots - 1);
  segments.push_back(chunk(slots - 1, rest));
  run(segments);
  run(decode(slots));
}

// The memory of a round's start is planned to the byte, and steps use their working memory.
TEST(StepMemory, IsWhatWasPlanned) {
  if (const auto device = resolve_device(kTestDevice); !device.ok()) GTEST_SKIP() << device.error().message;
  for (const auto& [name, options] : step_sizes()) {
    Loaded world = load(options);
    const int64_t before = world.device->bytes();
    auto round = make_round(*world.device, options, world.models, world.loaded, {});
    ASSERT_TRUE(round.ok()) << round.error().message;
    EXPECT_EQ(world.device->bytes() - before, world.models.memory.step_bytes) << name;
  }
}

TEST(StepMemory, IsNeeded) {
  if (const auto device = resolve_device(kTestDevice); !device.ok()) GTEST_SKIP() << device.error().message;
  EngineOptions options = pocket();
  options.max_num_seqs = 8;
  options.prefill_chunk = 256;
  Loaded world = load(options);
  auto round = make_round(*world.device, options, world.models, world.loaded, {});
  ASSERT_TRUE(round.ok()) << round.error().message;
  ASSERT_NO_FATAL_FAILURE(run_large_steps(**round, world.models));
  const Arena& scratch = (*round)->scratch();
  EXPECT_LE(scratch.peak(), scratch.capacity());
  const MemoryPlan& plan = world.models.memory;
  const auto planned = static_cast<double>(plan.weight_bytes + plan.kv_bytes() + plan.page_bytes() + plan.step_bytes);
  EXPECT_GE(planned - static_cast<double>(scratch.capacity() - scratch.peak()), 0.97 * planned);
  EXPECT_GE(static_cast<double>(scratch.peak()), 0.9 * static_cast<double>(scratch.capacity()));
}

// Runs steps of any size on a device that has only the planned memory (more is a failed CHECK).
TEST(StepMemory, IsEnoughForAnyStep) {
  std::mt19937 random(1);
  const auto pick = [&](int64_t least, int64_t most) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(least, most)(random));
  };
  for (auto& [name, options] : step_sizes()) {
    options.device = "cpu";
    options.graphs = false;
    const auto models = resolve_models(options);
    ASSERT_TRUE(models.ok()) << models.error().message;
    DryDevice device(options.threads);
    auto loaded = load_models(device, *models, 0, {});
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    auto made = make_round(device, options, *models, *loaded, {});
    ASSERT_TRUE(made.ok()) << made.error().message;
    decode::Round& round = **made;
    const int32_t slots = models->max_num_seqs, rows = models->max_num_batched_tokens, block = round.block_size();
    const std::vector<TokenId> tokens(static_cast<size_t>(rows), 7);
    for (int32_t slot = 0; slot < slots; ++slot) {
      decode::SlotStart start;
      start.prompt = std::span(tokens).first(1);
      ASSERT_TRUE(round.execute(decode::StartSlot{slot, start}).ok());
    }
    std::vector<decode::RoundResult> results;
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<decode::RoundSegment> segments(static_cast<size_t>(pick(1, slots)));
      const int32_t decoding = pick(0, std::ssize(segments)), most = pick(0, block - 1);
      int32_t left = rows - static_cast<int32_t>(segments.size()), drafted = 0;
      for (int32_t i = 0; i < std::ssize(segments); ++i) {
        segments[i].slot = i;
        segments[i].chooses = true;
        if (i < decoding) {
          segments[i].draft = pick(0, std::min(left, most));
          left -= segments[i].draft;
          drafted += segments[i].draft;
          continue;
        }
        const int32_t more = pick(0, 1) == 0 ? left : pick(0, left);
        segments[i].start = 0;
        segments[i].known = std::span(tokens).first(static_cast<size_t>(1 + more));
        if (pick(0, 1) == 0) segments[i].scored = segments[i].known.first(static_cast<size_t>(more));
        left -= more;
      }
      decode::VerifyBudget budget;
      const ops::SurvivalTable table;
      const int32_t shared = std::min(decoding + drafted, round.most_shared_rows());
      if (drafted > 0 && shared >= decoding && pick(0, 1) == 0) budget = {pick(decoding, shared), &table};
      ASSERT_TRUE(round.enqueue(segments, budget).ok());
      round.wait(results);
    }
    EXPECT_LE(round.scratch().peak(), round.scratch().capacity()) << name;
  }
}

// A plan needs a GPU's numbers, not the GPU.
TEST(StepMemory, IsPlannedForAGpuThatIsNotThere) {
  if (kTestDevice != "cuda") GTEST_SKIP() << "needs the plans of CUDA's kernels";
  EngineOptions options = pocket();
  options.device = "cpu";
  auto models = resolve_models(options);
  ASSERT_TRUE(models.ok()) << models.error().message;
  models->device.kind = DeviceKind::kCuda;
  const auto measure = [&](const GpuInfo& gpu) {
    models->device.gpu = gpu;
    const auto step = measure_step(options, *models);
    EXPECT_TRUE(step.ok());
    return *step;
  };
  const StepBytes h200 = measure({90, 132, 227 << 10});
  EXPECT_GT(h200.memory, 0);
  EXPECT_GT(h200.graphs, 0);
  const StepBytes half = measure({90, 66, 227 << 10});
  EXPECT_LT(half.memory, h200.memory) << "a multiprocessor has partial results of its own";
  EXPECT_EQ(half.graphs, h200.graphs) << "the same kernels";
}

// The start refuses weights that will not fit before it reads them.
TEST(StepMemory, IsPlannedBeforeWeightsAreRead) {
  EngineOptions options = pocket();
  options.device = "cpu";
  options.dummy_weights.reset();
  auto models = resolve_models(options);
  ASSERT_TRUE(models.ok());
  class Unread final : public weights::Checkpoint {
   public:
    explicit Unread(std::shared_ptr<const weights::Checkpoint> inner) : inner_(std::move(inner)) {}
    bool has(std::string_view name) const override { return inner_->has(name); }
    Result<weights::SourceTensor> get(std::string_view name, std::span<const int64_t>) const override {
      return data_loss(std::string(name) + " was read");
    }
    Result<weights::SourceTensor> get_part(std::string_view name, std::span<const int64_t>, int64_t,
                                           std::span<const int64_t>) const override {
      return data_loss(std::string(name) + " was read");
    }
    Status check(std::string_view name, std::span<const int64_t> shape) const override {
      return inner_->check(name, shape);
    }
    Result<std::vector<int64_t>> integers(std::string_view name, int64_t) const override {
      return data_loss(std::string(name) + " was read");
    }
    Status check_integers(std::string_view name, int64_t count) const override {
      return inner_->check_integers(name, count);
    }
    DType main_dtype() const override { return inner_->main_dtype(); }
    DType dtype_of(std::string_view name) const override { return inner_->dtype_of(name); }
    std::vector<std::string> names() const override { return inner_->names(); }

   private:
    std::shared_ptr<const weights::Checkpoint> inner_;
  };
  const int64_t planned = models->memory.step_bytes;
  models->target_checkpoint = std::make_shared<Unread>(models->target_checkpoint);
  models->drafters[0].checkpoint = std::make_shared<Unread>(models->drafters[0].checkpoint);
  const auto step = measure_step(options, *models);
  ASSERT_TRUE(step.ok()) << step.error().message;
  EXPECT_EQ(step->memory, planned);
}

}  // namespace
}  // namespace volley::engine
