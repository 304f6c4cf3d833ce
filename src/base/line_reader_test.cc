// Lines come out whole and in order, and one that is too long costs no memory and no other line.
#include "base/line_reader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace volley {
namespace {

class LineReaderTest : public testing::Test {
 protected:
  ~LineReaderTest() override { std::filesystem::remove(path_); }

  LineReader open(const std::string& content, size_t limit = kMaxLineBytes) {
    std::ofstream(path_, std::ios::binary) << content;
    return LineReader::open(path_, limit).value();
  }

  static std::vector<LineReader::Line> all(LineReader reader) {
    std::vector<LineReader::Line> lines;
    for (LineReader::Line line; reader.next(&line, 0).value() == LineReader::State::kLine;) lines.push_back(line);
    return lines;
  }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("volley_lines_" + std::to_string(getpid()))).string();
};

TEST_F(LineReaderTest, LinesWithAndWithoutALastNewline) {
  for (const char* content : {"a\n\nbc\n", "a\n\nbc"}) {
    const auto lines = all(open(content));
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[0].text, "a");
    EXPECT_EQ(lines[1].text, "");
    EXPECT_EQ(lines[2].text, "bc");
    EXPECT_EQ(lines[2].number, 3);
    EXPECT_EQ(lines[0].bytes + lines[1].bytes + lines[2].bytes, static_cast<int64_t>(std::string(content).size()));
  }
  EXPECT_TRUE(all(open("")).empty());
}

TEST_F(LineReaderTest, TheLimitIsExactAndOnlyTheLongLineSuffers) {
  const auto lines = all(open("1234\n12345\n\n123456789", 4));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_FALSE(lines[0].too_long);
  EXPECT_EQ(lines[0].text, "1234");
  EXPECT_TRUE(lines[1].too_long);
  EXPECT_FALSE(lines[2].too_long);
  EXPECT_TRUE(lines[3].too_long);
  EXPECT_EQ(lines[3].number, 4);
}

TEST_F(LineReaderTest, AHugeLineIsNotStored) {
  {
    std::ofstream file(path_, std::ios::binary);
    const std::string megabyte(1 << 20, 'x');
    for (int i = 0; i < 100; ++i) file << megabyte;
    file << "\nshort\n";
  }
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  auto reader = LineReader::open(path_, 1 << 20).value();
  LineReader::Line line;
  ASSERT_EQ(reader.next(&line, 0).value(), LineReader::State::kLine);
  EXPECT_TRUE(line.too_long);
  EXPECT_EQ(line.bytes, (int64_t{100} << 20) + 1);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 40 << 10) << "KiB";
  ASSERT_EQ(reader.next(&line, 0).value(), LineReader::State::kLine);
  EXPECT_EQ(line.text, "short");
  EXPECT_EQ(line.bytes, 6);
  EXPECT_EQ(reader.size(), (int64_t{100} << 20) + 7);
}

TEST_F(LineReaderTest, APipeThatIsSlowIsNotTheEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  auto reader = LineReader::open("/proc/self/fd/" + std::to_string(ends[0])).value();
  LineReader::Line line;
  EXPECT_EQ(reader.next(&line, 0).value(), LineReader::State::kNotYet);
  ASSERT_EQ(write(ends[1], "ha", 2), 2);
  EXPECT_EQ(reader.next(&line, 0).value(), LineReader::State::kNotYet);
  ASSERT_EQ(write(ends[1], "lf\n", 3), 3);
  ASSERT_EQ(reader.next(&line, 0).value(), LineReader::State::kLine);
  EXPECT_EQ(line.text, "half");
  close(ends[1]);
  close(ends[0]);
  EXPECT_EQ(reader.next(&line, 0).value(), LineReader::State::kEnd);
}

TEST_F(LineReaderTest, WhatCannotBeOpenedIsNamed) {
  const auto missing = LineReader::open("no/such/file");
  EXPECT_NE(missing.error().message.find("no/such/file"), std::string::npos);
  EXPECT_EQ(LineReader::open("/").error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace volley
