// The output survives a kill: a line torn at any byte is removed, whole ones are read back.
#include "serve/files/result_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace volley::serve {
namespace {

namespace fs = std::filesystem;

class ResultFileTest : public testing::Test {
 protected:
  ~ResultFileTest() override { fs::remove(path_); }
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  Result<ResultFile> open() const { return ResultFile::open(path_, "/nowhere/input"); }

  const std::string path_ = (fs::temp_directory_path() / ("volley_results_" + std::to_string(getpid()))).string();
};

TEST_F(ResultFileTest, ATornLineIsCutWhereverItWasTorn) {
  const std::string whole = "{\"a\": 1}\n{\"b\": \"\xC3\xA4\"}\n", last = "{\"c\": \"\xC3\xA4\"}\n";
  for (size_t bytes = 0; bytes <= last.size(); ++bytes) {
    write(whole + last.substr(0, bytes));
    auto file = open();
    ASSERT_TRUE(file.ok()) << file.error().message;
    std::vector<std::string> lines;
    const auto cut = file->recover([&lines](int64_t number, std::string_view line) -> Status {
      EXPECT_EQ(number, static_cast<int64_t>(lines.size()) + 1);
      lines.emplace_back(line);
      return {};
    });
    ASSERT_TRUE(cut.ok());
    const bool torn = bytes > 0 && bytes < last.size();
    EXPECT_EQ(*cut, torn) << bytes;
    EXPECT_EQ(lines.size(), bytes == last.size() ? 3u : 2u);
    ASSERT_TRUE(file->append("{\"d\": 1}").ok());
    ASSERT_TRUE(file->sync().ok());
    EXPECT_EQ(content(), whole + (bytes == last.size() ? last : "") + "{\"d\": 1}\n") << bytes;
  }
}

TEST_F(ResultFileTest, OneRunAtATime) {
  auto first = open();
  ASSERT_TRUE(first.ok());
  const auto second = open();
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("Another run"), std::string::npos);
}

TEST_F(ResultFileTest, RefusesTheInputAndWhatIsNoFile) {
  write("x");
  EXPECT_FALSE(ResultFile::open(path_, path_).ok());
  EXPECT_FALSE(ResultFile::open("/dev/null", path_).ok());
  EXPECT_FALSE(ResultFile::open("/nowhere/out.jsonl", path_).ok());
  EXPECT_EQ(content(), "x");
}

// Otherwise hours of answers would go into a file that cannot be opened any more.
TEST_F(ResultFileTest, AnOutputThatWasDeletedOrMovedIsNoticed) {
  auto file = open();
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->append("{}").ok());
  ASSERT_TRUE(file->sync().ok());
  const std::string elsewhere = path_ + ".moved";
  fs::rename(path_, elsewhere);
  const Status moved = file->sync();
  fs::rename(elsewhere, path_);
  EXPECT_TRUE(file->sync().ok());
  fs::remove(path_);
  const Status deleted = file->sync();
  write("another file of this name");
  const Status replaced = file->sync();
  ASSERT_FALSE(moved.ok() || deleted.ok() || replaced.ok());
  EXPECT_NE(moved.error().message.find("move it back"), std::string::npos) << moved.error().message;
  EXPECT_NE(deleted.error().message.find("are lost"), std::string::npos) << deleted.error().message;
  EXPECT_NE(replaced.error().message.find("are lost"), std::string::npos) << replaced.error().message;
}

TEST_F(ResultFileTest, ADamagedLineEndsTheReading) {
  write("a\nb\nc\n");
  auto file = open();
  ASSERT_TRUE(file.ok());
  const auto read = file->recover(
      [](int64_t number, std::string_view) -> Status { return number == 2 ? data_loss("line 2") : Status(); });
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().message, "line 2");
  EXPECT_EQ(content(), "a\nb\nc\n") << "nothing is lost by looking";
}

}  // namespace
}  // namespace volley::serve
