// Protects the order of the lines, and a file's content until a run has a line to write.
#include "apps/generate/ordered_output.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/temp_folder_for_test.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;

class OrderedOutputTest : public testing::Test {
 protected:
  OrderedOutputTest() { folder_.write("out", "what was there before\n"); }

  std::string content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TempFolder folder_;
  const std::string path_ = (folder_ / "out").string();
};

TEST_F(OrderedOutputTest, LinesWaitForTheirTurn) {
  auto output = OrderedOutput::open(path_).value();
  ASSERT_TRUE(output.put(1, "b").ok());
  EXPECT_EQ(output.next(), 0);
  ASSERT_TRUE(output.put(0, "a").ok());
  EXPECT_EQ(output.next(), 2);
  EXPECT_EQ(content(), "a\nb\n");
}

TEST_F(OrderedOutputTest, TheOldContentStaysUntilTheFirstLine) {
  {
    auto output = OrderedOutput::open(path_).value();
    ASSERT_TRUE(output.put(1, "b").ok());
  }
  EXPECT_EQ(content(), "what was there before\n");
  auto output = OrderedOutput::open(path_).value();
  ASSERT_TRUE(output.finish().ok());
  EXPECT_EQ(content(), "") << "a run without lines has an empty output";
}

TEST_F(OrderedOutputTest, TheInputIsNoOutput) {
  const std::string link = (folder_ / "link").string(), hard = (folder_ / "hard").string();
  fs::create_symlink(path_, link);
  fs::create_hard_link(path_, hard);
  for (const std::string& output : {path_, link, hard}) {
    const auto opened = OrderedOutput::open(output, path_);
    ASSERT_FALSE(opened.ok()) << output;
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(content(), "what was there before\n");
  EXPECT_TRUE(OrderedOutput::open("/dev/null", "/dev/null").ok()) << "a device loses nothing";
}

TEST_F(OrderedOutputTest, AFullDiskIsAnError) {
  auto output = OrderedOutput::open("/dev/full").value();
  const Status written = output.put(0, "a");
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kDataLoss);
  EXPECT_NE(written.error().message.find("/dev/full"), std::string::npos);
}

}  // namespace
}  // namespace volley::apps
