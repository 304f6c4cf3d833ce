#include "engine/start/memory_plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace volley::engine {
namespace {

class MemoryPlanTest : public ::testing::Test {
 protected:
  MemoryPlanTest() {
    input_.weight_bytes = 8 << 20;
    input_.groups = {{.bytes = 16 * 1280}};
    input_.positions = 1008;
    input_.page_size = 16;
    input_.max_model_len = 1000;
    input_.max_num_seqs = 4;
    input_.available_bytes = int64_t{1} << 30;
  }
  MemoryPlanInput input_;
};

TEST_F(MemoryPlanTest, ARequestsPagesHoldItsBlocksToo) {
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pages_per_request, 63) << "a block may be written past the last position";
}

// Full contexts in all slots would leave no room for the prefixes of ended requests.
TEST_F(MemoryPlanTest, KeepsRoomForPrefixesBesideTheSlots) {
  input_.available_bytes = int64_t{100} << 30;
  input_.max_num_seqs = 1;
  auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pages(), kPrefixBytes / plan->page_bytes()) << "but no more: the machine is not the engine's alone";
  const int64_t slots = 2 * kPrefixBytes / plan->page_bytes() / plan->pages_per_request;
  input_.max_num_seqs = static_cast<int32_t>(slots);
  EXPECT_EQ(plan_memory(input_)->pages(), slots * plan->pages_per_request);
  // A stated fraction is for the engine alone.
  input_.fraction = 0.5;
  input_.max_num_seqs = 1;
  plan = plan_memory(input_);
  const int64_t room = input_.available_bytes / 2 - plan->weight_bytes - plan->page_bytes();  // one is the scrap page
  EXPECT_EQ(plan->pages(), room / 2 / plan->page_bytes());
  input_.max_num_seqs = 1'000'000;
  EXPECT_EQ(plan_memory(input_)->pages(), room / plan->page_bytes());
}

TEST_F(MemoryPlanTest, TakesAtMostHalfOfWhatIsLeft) {
  EXPECT_LE(plan_memory(input_)->kv_bytes(), (input_.available_bytes - plan_memory(input_)->weight_bytes) / 2);
  input_.max_num_seqs = 100'000;
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->kv_bytes(), (input_.available_bytes - plan->weight_bytes) / 2);
}

// 2^30 of these pages have 2^64 bytes.
TEST_F(MemoryPlanTest, LargePagesAreCountedRight) {
  input_.groups = {{.bytes = int64_t{1} << 34}};
  input_.available_bytes = int64_t{1} << 42;
  input_.fraction = 0.5;
  input_.max_num_seqs = 100;
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->pages(), 126) << "128 less the weights' and the scrap page";
}

TEST_F(MemoryPlanTest, RefusesAPoolThatCannotHoldOneRequest) {
  input_.kv_pages = 62;
  const auto plan = plan_memory(input_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(plan.error().message.find("lower --max-model-len"), std::string::npos);
  input_.kv_pages = 63;  // 1000 positions and a block of 8 take 63 pages of 16: one request fits
  EXPECT_TRUE(plan_memory(input_).ok());
}

// Every slot has its states before the first page.
TEST_F(MemoryPlanTest, StatesComeBeforePages) {
  const int64_t pages = plan_memory(input_)->pages();
  input_.available_bytes = int64_t{16} << 20;
  const int64_t fewer = plan_memory(input_)->pages();
  EXPECT_LT(fewer, pages);
  input_.state_bytes = 4 << 20;
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->state_bytes, 4 << 20);
  EXPECT_LT(plan->pages(), fewer);
}

TEST_F(MemoryPlanTest, StatesBindTheNumberOfSlots) {
  EXPECT_EQ(default_slots(32, 0, 0), 32) << "no layer has a state";
  EXPECT_EQ(default_slots(32, 1 << 20, int64_t{64} << 20), 32);
  EXPECT_EQ(default_slots(32, 1 << 20, int64_t{63} << 20), 31);
  EXPECT_EQ(default_slots(32, 1 << 20, 0), 1) << "whether one fits is the plan's to say";
}

TEST_F(MemoryPlanTest, SaysThatStatesDoNotFit) {
  input_.state_bytes = int64_t{2} << 30;
  const auto many = plan_memory(input_);
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(many.error().message,
            "The states of recurrent layers of 4 requests (2.0 GiB), weights (8.0 MiB) and a step's memory (0 B) need "
            "more than the 1.0 GiB of memory that may be used: lower --max-num-seqs, raise --memory-fraction, or use a "
            "smaller model.");
  input_.max_num_seqs = 1;
  const std::string one = plan_memory(input_).error().message;
  EXPECT_NE(one.find("layers of one request (2.0 GiB)"), std::string::npos) << one;
  EXPECT_EQ(one.find("--max-num-seqs"), std::string::npos) << one;
}

// Default slots never refuse a model: one request of max_model_len comes before them.
TEST_F(MemoryPlanTest, StatesLeavePagesForOneRequest) {
  input_.fraction = 1;
  input_.available_bytes = input_.weight_bytes + (8 << 20);
  input_.max_num_seqs = 7;
  input_.state_bytes = 7 << 20;
  const auto asked = plan_memory(input_);  // 1 MiB, but the pages need 1.2 MiB
  ASSERT_FALSE(asked.ok());
  EXPECT_EQ(asked.error().message,
            "The KV cache has 50 pages (1000.0 KiB), but one request of 1000 tokens needs 63 (1.2 MiB), and states of "
            "recurrent layers take 7.0 MiB (7 requests and snapshots): lower --max-num-seqs or --max-model-len, or "
            "give the cache more memory.");
  input_.fewer_slots = true;
  auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->max_num_seqs, 6);
  EXPECT_EQ(plan->state_bytes, 6 << 20);
  EXPECT_GE(plan->pages(), plan->pages_per_request);
  input_.snapshot_unit = 1 << 20;  // a quarter of the room after states
  EXPECT_EQ(plan_memory(input_)->max_num_seqs, 6);
  input_.step_bytes = 5 << 20;  // 1.2 MiB beside two slots' states, without the scrap page
  EXPECT_EQ(plan_memory(input_)->max_num_seqs, 1);
  input_.step_bytes = 6 << 20;
  const auto none = plan_memory(input_);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("(one request and snapshots): lower --max-model-len"), std::string::npos)
      << none.error().message;
}

// Every group has a scrap page, so a plan that takes all memory must count them.
TEST_F(MemoryPlanTest, CountsTheScrapPages) {
  input_.fraction = 1;
  input_.groups.push_back({.window = 64, .bytes = 16 * 320});
  input_.kv_pages = 100;
  const int64_t taken = plan_memory(input_)->kv_bytes() + input_.weight_bytes;
  input_.available_bytes = taken + 16 * (1280 + 320);
  EXPECT_TRUE(plan_memory(input_).ok());
  --input_.available_bytes;
  EXPECT_FALSE(plan_memory(input_).ok());
}

TEST_F(MemoryPlanTest, RefusesMoreThanThereIs) {
  input_.kv_pages = 1'000'000;
  const auto plan = plan_memory(input_);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("need more than"), std::string::npos);
}

// A window of 256 positions beside full layers: the slots' need of it does not grow with their contexts.
class WindowPlanTest : public MemoryPlanTest {
 protected:
  WindowPlanTest() {
    input_.positions = 100'016;
    input_.max_model_len = 100'000;
    input_.decode_ahead = 17;
    input_.prefill_ahead = 17 + 512;
    input_.prompt_rows = 1024;
    input_.groups.push_back({.life = kv::Life::kWindow, .window = 256, .bytes = 16 * 3840});
    input_.available_bytes = int64_t{100} << 30;
  }
  static constexpr int64_t kDecoding = (255 + 17) / 16 + 1, kPrefilling = (255 + 529) / 16 + 1;
};

TEST_F(WindowPlanTest, AWindowHasPagesForAllSlotsAndThePromptsUnderWay) {
  input_.kv_pages = 10'000;  // full contexts in four slots take 25,004
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pages(), 10'000);
  EXPECT_EQ(plan->groups[1].pages, 4 * kDecoding + 1024 / 16);
  EXPECT_EQ(plan->kv_bytes(), 16 * (10'000 * 1280 + plan->groups[1].pages * 3840));
  input_.kv_pages = 50'008;  // the surplus is for prefixes, in the same proportion
  EXPECT_EQ(plan_memory(input_)->groups[1].pages, 2 * plan->groups[1].pages);
  input_.max_num_seqs = 1'000;
  input_.kv_pages = 7'000;
  EXPECT_EQ(plan_memory(input_)->groups[1].pages, 7'000) << "no page of group 0, no use of one of the window";
  input_.max_num_seqs = 1;
  input_.prompt_rows = 1;
  EXPECT_EQ(plan_memory(input_)->groups[1].pages, kPrefilling) << "one prompt can be computed";
}

TEST_F(WindowPlanTest, DividesTheMemoryThatThereIs) {
  input_.fraction = 0.5;
  input_.max_num_seqs = 600;  // their full contexts do not fit
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  const int64_t room = input_.available_bytes / 2 - plan->weight_bytes - plan->page_bytes();  // one is the scrap page
  EXPECT_LE(plan->kv_bytes(), room);
  EXPECT_GT(plan->kv_bytes(), room - 2 * plan->page_bytes()) << "all of it, but for less than a page";
  EXPECT_EQ(plan->groups[1].pages, 600 * kDecoding + 1024 / 16);
  input_.kv_memory_bytes = int64_t{1} << 30;
  const auto asked = plan_memory(input_);
  ASSERT_TRUE(asked.ok());
  EXPECT_LE(asked->kv_bytes(), input_.kv_memory_bytes);
  EXPECT_GT(asked->kv_bytes(), input_.kv_memory_bytes - 2 * plan->page_bytes());
}

// Where all layers have windows, pages of group 0 hold no data and only count positions.
TEST_F(WindowPlanTest, WindowsAloneTakeLittle) {
  input_.groups[0].bytes = 0;
  input_.fraction = 0.5;
  const auto plan = plan_memory(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_GE(plan->pages(), 4 * plan->pages_per_request);
  EXPECT_EQ(plan->kv_bytes(), plan->groups[1].pages * input_.groups[1].bytes);
  EXPECT_LE(plan->kv_bytes(), (input_.available_bytes / 2 - plan->weight_bytes) / 2) << "half is enough for prefixes";
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

// Downloaded weights fill a container's page cache, and must not get the start refused.
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
  write("memory.stat", "inactive_file 2000\nactive_file 0\n");  // the kernel's files are not of one moment
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
