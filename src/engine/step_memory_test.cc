// What loading and a step take on the device against what the memory plan kept for them.
#include <gtest/gtest.h>

#include "engine/device_testing.h"
#include "engine/round_setup.h"

namespace volley::engine {
namespace {

// Built for a GPU as well (CMakeLists.txt).
#ifndef VOLLEY_TEST_DEVICE
#define VOLLEY_TEST_DEVICE "cpu"
#endif

EngineOptions pocket() {
  EngineOptions options;
  options.device = VOLLEY_TEST_DEVICE;
  options.model_dir = "models/pocket";
  options.draft_dir = "models/pocket-dflash";
  options.dummy_weights = 1;
  options.threads = 2;
  options.kv_pages = 300;
  return options;
}

// Of the bytes that were planned, the share that the round takes.
double share_taken(const EngineOptions& options) {
  auto models = resolve_models(options);
  EXPECT_TRUE(models.ok()) << models.error().message;
  auto inner = make_device(models->device, options.threads);
  EXPECT_TRUE(inner.ok());
  WatchedDevice device(std::move(inner).value());
  auto loaded = load_models(device, *models, 0, {});
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  device.bytes = 0;
  auto round = make_round(device, options, *models, *loaded, {});
  EXPECT_TRUE(round.ok()) << round.error().message;
  return static_cast<double>(device.bytes) / static_cast<double>(models->memory.step_bytes);
}

// Weights and pages are planned to the byte: what a model takes is known before any weight is read.
TEST(LoadedMemory, IsWhatWasPlanned) {
  if (const auto device = resolve_device(VOLLEY_TEST_DEVICE); !device.ok()) GTEST_SKIP() << device.error().message;
  const auto expect_planned = [](const char* name, const EngineOptions& options) {
    auto models = resolve_models(options);
    ASSERT_TRUE(models.ok()) << models.error().message;
    auto inner = make_device(models->device, options.threads);
    ASSERT_TRUE(inner.ok());
    WatchedDevice device(std::move(inner).value());
    auto loaded = load_models(device, *models, 0, {});
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    const MemoryPlan& plan = models->memory;
    EXPECT_EQ(device.bytes, plan.weight_bytes + plan.kv_bytes() + plan.page_bytes())
        << name << "; the last are the scrap pages";
  };
  EngineOptions options = pocket();
  expect_planned("as it comes", options);
  options.dtype = ComputeType::kFloat32;
  options.dummy_weights.reset();
  expect_planned("in fp32", options);
  options.speculation = Speculation::kOff;
  options.model_dir = "tests/data/targets/narrow_fp32";
  expect_planned("fp32 weights, plain", options);
}

// Without a mapping the table of embeddings, which a CPU reads where it lies, takes memory too.
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

TEST(StepMemory, TakesNoMoreThanWasPlanned) {
  if (const auto device = resolve_device(VOLLEY_TEST_DEVICE); !device.ok()) GTEST_SKIP() << device.error().message;
  const auto expect_planned = [](const char* name, const EngineOptions& options) {
    const double share = share_taken(options);
    EXPECT_LE(share, 1.0) << name;
    EXPECT_GT(share, 0.5) << name << ": the plan keeps memory from the cache that nobody needs";
  };
  EngineOptions options = pocket();
  expect_planned("as it comes", options);
  options.max_num_seqs = 200;
  expect_planned("many slots", options);
  options.max_num_seqs = 1;
  options.prefill_chunk = 16;
  expect_planned("one request", options);
  options.prefill_chunk = 4096;
  expect_planned("long chunks", options);
  options.speculation = Speculation::kOff;
  expect_planned("plain", options);
  options.dtype = ComputeType::kFloat32;
  expect_planned("in fp32", options);
}

}  // namespace
}  // namespace volley::engine
