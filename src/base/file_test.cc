// Protects: whatever a user's path points to, the program does not hang, fill the memory or crash.
#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace volley {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ReadFile : public testing::Test {
 protected:
  ReadFile()
      : path_(testing::TempDir() + "volley_file_" + testing::UnitTest::GetInstance()->current_test_info()->name() +
              std::to_string(getpid())) {}
  ~ReadFile() override { unlink(path_.c_str()); }

  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  const std::string path_;
};

TEST_F(ReadFile, GivesWhatIsThereUpToTheLimit) {
  write(std::string("a\0b\n", 4));
  EXPECT_EQ(*read_file(path_, 4), std::string("a\0b\n", 4));
  EXPECT_EQ(*read_file(path_, 4000), std::string("a\0b\n", 4));
  const auto large = read_file(path_, 3);
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(large.error().message, AllOf(HasSubstr(path_), HasSubstr("more than 3 bytes")));
  write("");
  EXPECT_EQ(*read_file(path_, 0), "");
}

// Files of the kernel have contents although their size is 0.
TEST_F(ReadFile, DoesNotTrustTheSize) {
  EXPECT_THAT(*read_file("/proc/self/status", 1 << 20), HasSubstr("Name:"));
  EXPECT_FALSE(read_file("/proc/self/status", 10).ok());
}

TEST_F(ReadFile, PipesDevicesAndFoldersAreNamedAndDoNotBlock) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(read_file(path_, 100).error().message, AllOf(HasSubstr(path_), HasSubstr("is a named pipe")));
  EXPECT_THAT(read_file("/dev/zero", 100).error().message, HasSubstr("/dev/zero is a device"));
  EXPECT_THAT(read_file("/tmp", 100).error().message, HasSubstr("/tmp is a folder"));
}

TEST_F(ReadFile, MissingAndForbiddenFilesAreToldApart) {
  EXPECT_EQ(read_file(path_, 100).error().code, ErrorCode::kNotFound);
  write("a");
  ASSERT_EQ(chmod(path_.c_str(), 0), 0);
  const bool root = geteuid() == 0;
  ASSERT_TRUE(!root || seteuid(65534) == 0);  // root may read every file
  const auto forbidden = read_file(path_, 100);
  ASSERT_TRUE(!root || seteuid(0) == 0);
  ASSERT_FALSE(forbidden.ok());
  EXPECT_EQ(forbidden.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(forbidden.error().message, HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace volley
