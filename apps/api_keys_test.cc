// Protects against a server that is open because its keys were misread.
#include "apps/api_keys.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace volley::apps {
namespace {

using Keys = std::vector<std::string>;

class ApiKeyFile {
 public:
  explicit ApiKeyFile(const std::string& text) { std::ofstream(path_) << text; }
  ~ApiKeyFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = ::testing::TempDir() + "volley_api_keys";
};

TEST(ApiKeys, ReadsFileAndEnvironment) {
  const ApiKeyFile file("# team a\nfirst\r\n\n  second  \n");
  EXPECT_EQ(read_api_keys(file.path(), "third, fourth,").value(), (Keys{"first", "second", "third", "fourth"}));
  EXPECT_EQ(read_api_keys(file.path(), std::nullopt).value(), (Keys{"first", "second"}));
  EXPECT_EQ(read_api_keys(std::nullopt, std::nullopt).value(), Keys{});
  EXPECT_EQ(read_api_keys(file.path(), "third", {"fourth", "fifth"}).value(),
            (Keys{"first", "second", "third", "fourth", "fifth"}));
  EXPECT_EQ(read_api_keys(std::nullopt, std::nullopt, {"only"}).value(), Keys{"only"});
}

TEST(ApiKeys, RefusesWhatWouldLeaveTheServerOpen) {
  EXPECT_EQ(read_api_keys("/no/such/file", std::nullopt).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_api_keys("/dev/zero", std::nullopt).error().code, ErrorCode::kNotFound)
      << "nothing without an end is read";
  const ApiKeyFile empty("# nothing yet\n\n");
  EXPECT_EQ(read_api_keys(empty.path(), std::nullopt).error().code, ErrorCode::kInvalidArgument);
  for (const std::string list : {"", ",", " , ,"}) {
    EXPECT_EQ(read_api_keys(std::nullopt, list).error().code, ErrorCode::kInvalidArgument) << list;
  }
  EXPECT_EQ(read_api_keys(std::nullopt, std::nullopt, {" "}).error().code, ErrorCode::kInvalidArgument);
  const auto spaced = read_api_keys(std::nullopt, "good,se cret");
  ASSERT_FALSE(spaced.ok());
  EXPECT_EQ(spaced.error().message.find("cret"), std::string::npos) << "a message must not quote a key";
}

}  // namespace
}  // namespace volley::apps
