#include "engine/memory_plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace volley::engine {
namespace {

model::DecoderSpec decoder(int layers, int hidden, int kv_heads) {
  model::DecoderSpec spec;
  spec.hidden = hidden;
  spec.heads = spec.kv_heads = kv_heads;
  spec.head_dim = 64;
  spec.intermediate = 4 * hidden;
  spec.vocab = 1000;
  spec.layers.resize(layers);
  return spec;
}

class MemoryPlanTest : public ::testing::Test {
 protected:
  MemoryPlanTest() : target_(decoder(4, 256, 2)) {
    draft_.decoder = decoder(2, 256, 1);
    draft_.block_size = 8;
    draft_.target_layers = {1, 2};
    input_.target = &target_;
    input_.draft = &draft_;
    input_.block_size = 8;
    input_.page_size = 16;
    input_.max_model_len = 1000;
    input_.max_num_seqs = 4;
    input_.available_bytes = int64_t{1} << 30;
  }
  model::DecoderSpec target_;
  model::DraftSpec draft_;
  MemoryPlanInput input_;
};

// A server that forgot the drafter's layers would run out at the worst moment.
TEST_F(MemoryPlanTest, CountsTheLayersOfBothModels) {
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  const int64_t position = (4 * 2 + 2 * 1) * 2 * 64 * 2;  // layers × KV heads, K and V, head_dim, bf16
  EXPECT_EQ(plan->page_bytes, 16 * position);
  EXPECT_EQ(plan->pages_per_request, (1000 + 8 + 15) / 16) << "a block may be written past the last position";
}

// What stands beside the checkpoint's own parameters: the drafter's second copy of k and v, and two rotary tables.
TEST_F(MemoryPlanTest, CountsWhatLoadingAdds) {
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  const int64_t parameters = model::count_parameters(target_) + model::count_parameters(draft_);
  const int64_t injection = 2 * 2 * 1 * 64 * 256, tables = 2 * (1000 + 8) * 64;
  EXPECT_EQ(plan->weight_bytes, (parameters + injection) * 2 + tables * 4);
  input_.draft_weight_dtype = DType::kF32;
  EXPECT_EQ(plan_memory(input_)->weight_bytes - plan->weight_bytes, (model::count_parameters(draft_) + injection) * 2);
}

// A quantised drafter: a byte a weight, a scale for each row of each matrix, and a head of its own.
TEST_F(MemoryPlanTest, CountsAQuantisedDraftersHeadAndScales) {
  const auto plain = plan_memory(input_);
  input_.draft_weight_dtype = DType::kF8E4M3;
  const auto quantised = plan_memory(input_);
  ASSERT_TRUE(plain.ok() && quantised.ok());
  const int64_t parameters = model::count_parameters(draft_) + 2 * 2 * 1 * 64 * 256, head = 1000 * 256;
  const int64_t layer_rows = (64 + 2 * 64) + 2 * 64 + 256 + 2 * 1024 + 256;  // qkv, k and v again, o, gate and up, down
  EXPECT_EQ(quantised->weight_bytes - plain->weight_bytes, head - parameters + (2 * layer_rows + 256 + 1000) * 4);
}

// Full contexts in all slots alone would leave one slot without room for what it has just computed.
TEST_F(MemoryPlanTest, KeepsRoomForPrefixesBesideTheSlots) {
  input_.available_bytes = int64_t{100} << 30;
  input_.max_num_seqs = 1;
  auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pages, kPrefixBytes / plan->page_bytes) << "but no more: the machine is not the engine's alone";
  const int64_t slots = 2 * kPrefixBytes / plan->page_bytes / plan->pages_per_request;
  input_.max_num_seqs = static_cast<int32_t>(slots);
  EXPECT_EQ(plan_memory(input_)->pages, slots * plan->pages_per_request);
  // A stated share of the memory is the engine's.
  input_.fraction = 0.5;
  input_.max_num_seqs = 1;
  plan = plan_memory(input_);
  const int64_t room = input_.available_bytes / 2 - plan->weight_bytes;
  EXPECT_EQ(plan->pages, room / 2 / plan->page_bytes);
  input_.max_num_seqs = 1'000'000;
  EXPECT_EQ(plan_memory(input_)->pages, room / plan->page_bytes);
}

TEST_F(MemoryPlanTest, TakesAtMostHalfOfWhatIsLeft) {
  EXPECT_LE(plan_memory(input_)->kv_bytes(), (input_.available_bytes - plan_memory(input_)->weight_bytes) / 2);
  input_.max_num_seqs = 100'000;
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->kv_bytes(), (input_.available_bytes - plan->weight_bytes) / 2);
}

TEST_F(MemoryPlanTest, RefusesAPoolThatCannotHoldOneRequest) {
  input_.kv_pages = 62;
  const auto plan = plan_memory(input_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(plan.error().message.find("lower --max-model-len"), std::string::npos);
  input_.kv_pages = 63;  // 1000 positions and a block of 8 are 63 pages of 16: one request fits
  EXPECT_TRUE(plan_memory(input_).ok());
}

TEST_F(MemoryPlanTest, RefusesMoreThanThereIs) {
  input_.kv_pages = 1'000'000;
  const auto plan = plan_memory(input_);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("need more than"), std::string::npos);
}

class CgroupMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::optional<int64_t> left() const { return cgroup_memory_left(folder_.string()); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("volley-cgroup-" + std::to_string(::getpid()));
};

// A container that has just downloaded its weights has them in the page cache, and must not be refused for it.
TEST_F(CgroupMemoryTest, ThePageCacheCountsAsFree) {
  write("memory.max", "1000\n");
  write("memory.current", "900\n");
  EXPECT_EQ(left(), 100) << "nobody says what of it is files";
  write("memory.stat", "anon 150\nfile 750\ninactive_anon 150\ninactive_file 500\nactive_file 200\nslab 50\n");
  EXPECT_EQ(left(), 800);
}

TEST_F(CgroupMemoryTest, StaysWithinTheLimit) {
  write("memory.max", "1000\n");
  write("memory.current", "1100\n");
  EXPECT_EQ(left(), 0);
  write("memory.stat", "inactive_file 2000\nactive_file 0\n");  // the files are not of one moment
  EXPECT_EQ(left(), 1000);
}

TEST_F(CgroupMemoryTest, NothingWithoutALimit) {
  EXPECT_FALSE(left().has_value());
  write("memory.max", "max\n");
  write("memory.current", "900\n");
  EXPECT_FALSE(left().has_value());
}

TEST(FormatBytes, ReadsLikeAPersonWouldSayIt) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace volley::engine
