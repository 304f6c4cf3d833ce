// Finds open lines exactly, even if hashes of ids are equal.
#include "serve/batches/batch_index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace volley::serve {
namespace {

namespace fs = std::filesystem;
using Mark = BatchIndex::Mark;
using State = BatchIndex::State;

std::string line_of(const std::string& id) {
  return R"({"custom_id": ")" + id + "\"}\n";
}

class BatchIndexTest : public testing::Test {
 protected:
  ~BatchIndexTest() override { fs::remove(path_); }
  Result<BatchIndex> read(const std::string& text, BatchIndex::Hash hash = {}) {
    std::ofstream(path_, std::ios::binary) << text;
    return BatchIndex::read(path_.string(), std::move(hash));
  }
  const fs::path path_ = fs::temp_directory_path() / ("volley_index_" + std::to_string(getpid()));
};

TEST_F(BatchIndexTest, MarksEachLineOnce) {
  auto index = read(line_of("a") + "\n" + line_of("b"));
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_EQ(index->lines(), 2) << "a blank line is no request";
  EXPECT_EQ(index->state("b", static_cast<int64_t>(line_of("a").size()) + 1), State::kOpen);
  EXPECT_EQ(index->mark_done("b"), Mark::kMarked);
  EXPECT_EQ(index->mark_done("b"), Mark::kAlreadyDone);
  EXPECT_EQ(index->mark_done("c"), Mark::kUnknown);
  EXPECT_EQ(index->done(), 1);
  EXPECT_EQ(index->state("b", static_cast<int64_t>(line_of("a").size()) + 1), State::kDone);
  EXPECT_EQ(index->state("a", 0), State::kOpen);
  EXPECT_EQ(index->state("a", 5), State::kUnknown);
}

TEST_F(BatchIndexTest, TellsIdsWithEqualHashesApart) {
  const auto constant = [](std::string_view) { return uint64_t{7}; };
  auto index = read(line_of("a") + line_of("b") + line_of("c"), constant);
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_EQ(index->mark_done("b"), Mark::kMarked);
  EXPECT_EQ(index->mark_done("x"), Mark::kUnknown);
  EXPECT_EQ(index->state("a", 0), State::kOpen);
  EXPECT_EQ(index->state("b", static_cast<int64_t>(line_of("a").size())), State::kDone);
  EXPECT_FALSE(read(line_of("a") + line_of("b") + line_of("a"), constant).ok());
}

// Each line would be read again for each other one.
TEST_F(BatchIndexTest, RefusesManyIdsWithEqualHashes) {
  const auto constant = [](std::string_view) { return uint64_t{7}; };
  std::string text;
  for (int i = 0; i < 16; ++i) text += line_of(std::to_string(i));
  EXPECT_TRUE(read(text, constant).ok());
  const auto refused = read(text + line_of("16"), constant);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("same hash"), std::string::npos) << refused.error().message;
}

// An index is in memory, so reading stops at its largest size.
TEST_F(BatchIndexTest, RefusesMoreLinesThanItMayHold) {
  std::string text = line_of("a") + "\n" + line_of("b");
  std::ofstream(path_, std::ios::binary) << text;
  EXPECT_TRUE(BatchIndex::read(path_.string(), {}, nullptr, 2).ok()) << "blank lines are none";
  std::ofstream(path_, std::ios::binary) << text << line_of("c") << "no json\n";
  std::vector<LineProblem> problems;
  const auto refused = BatchIndex::read(path_.string(), {}, &problems, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("more than 2 requests: split it"), std::string::npos)
      << refused.error().message;
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].code, "too_many_lines");
  EXPECT_EQ(problems[0].line, 4);
}

// The message is stored with the batch.
TEST_F(BatchIndexTest, CutsALongIdInAMessage) {
  const std::string id(1 << 20, 'x');
  const auto index = read(line_of(id) + line_of(id));
  ASSERT_FALSE(index.ok());
  EXPECT_LT(index.error().message.size(), 1000u);
}

TEST_F(BatchIndexTest, NamesTheLinesOfADuplicate) {
  const auto index = read(line_of("a") + "\n" + line_of("b") + line_of("a"));
  ASSERT_FALSE(index.ok());
  EXPECT_NE(index.error().message.find("lines 1 and 4"), std::string::npos) << index.error().message;
  EXPECT_NE(index.error().message.find("\"a\""), std::string::npos);
}

TEST_F(BatchIndexTest, NamesLinesThatAreNoRequests) {
  std::string text = line_of("a");
  for (int i = 0; i < 15; ++i) text += "no json\n";
  const auto index = read(text);
  ASSERT_FALSE(index.ok());
  EXPECT_NE(index.error().message.find("line 2:"), std::string::npos) << index.error().message;
  EXPECT_NE(index.error().message.find("And 5 more"), std::string::npos) << index.error().message;
}

}  // namespace
}  // namespace volley::serve
