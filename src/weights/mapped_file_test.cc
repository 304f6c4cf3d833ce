// Protects: a file that is cut short while it is mapped can be named by the handler of the signal that this causes.
#include "weights/mapped_file.h"

#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace volley::weights {
namespace {

constexpr size_t kLarge = (2 << 20) + 5;  // more than is read into memory

TEST(MappedFile, IsFoundByAddressWhileItIsOpen) {
  const TempFolder folder;
  folder.write("a", std::string(kLarge, 'a'));
  folder.write("b", std::string(kLarge, 'b'));
  auto a = *MappedFile::open(folder.path() + "/a");
  const auto b = *MappedFile::open(folder.path() + "/b");
  const std::byte* first = a->bytes().data();
  EXPECT_STREQ(mapped_file_at(first), (folder.path() + "/a").c_str());
  EXPECT_STREQ(mapped_file_at(first + kLarge - 1), (folder.path() + "/a").c_str());
  EXPECT_STREQ(mapped_file_at(b->bytes().data() + 1234), (folder.path() + "/b").c_str());
  EXPECT_EQ(mapped_file_at(&folder), nullptr);
  a.reset();
  EXPECT_EQ(mapped_file_at(first), nullptr);
}

TEST(MappedFile, SmallFilesAreReadAndOutliveBeingCutShort) {
  const TempFolder folder;
  folder.write("config.json", "{\"a\": 1}");
  const auto file = *MappedFile::open(folder.path() + "/config.json");
  std::filesystem::resize_file(folder.path() + "/config.json", 0);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()), "{\"a\": 1}");
  EXPECT_EQ(mapped_file_at(file->bytes().data()), nullptr);
  file->drop(file->bytes());
  EXPECT_EQ(static_cast<char>(file->bytes()[0]), '{') << "what is in memory cannot be dropped";
}

}  // namespace
}  // namespace volley::weights
