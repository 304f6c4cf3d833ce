// Protects: no file, however damaged or hostile, makes the reader crash or hand out bytes that are not the tensor's.
#include "weights/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "weights/test_files.h"

namespace volley::weights {
namespace {

using testing::HasSubstr;

Result<SafetensorsHeader> parse(const std::string& bytes) {
  return parse_safetensors_header({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "some.safetensors");
}

const std::string kGood = safetensors_bytes(
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"e":{"dtype":"F16","shape":[0,4],"data_offsets":[8,8]},)"
    R"("s":{"dtype":"I64","shape":[],"data_offsets":[20,28]}}   )",
    std::string(28, '\1'));

TEST(SafetensorsHeader, ReadsAGoodFile) {
  const auto header = parse(kGood);
  ASSERT_TRUE(header.ok()) << header.error().message;
  ASSERT_EQ(header->size(), 4u);
  const HeaderEntry& b = header->at("b");
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.begin, kGood.size() - 20);
  EXPECT_EQ(b.end, kGood.size() - 8);
  EXPECT_EQ(header->at("e").begin, header->at("e").end);
  EXPECT_TRUE(header->at("s").shape.empty());
}

TEST(SafetensorsHeader, AcceptsDtypesThatItDoesNotKnow) {
  const auto header =
      parse(safetensors_bytes(R"({"q":{"dtype":"Q9_Z","shape":[64],"data_offsets":[0,18]}})", std::string(18, 'q')));
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->at("q").dtype, "Q9_Z");
}

TEST(SafetensorsHeader, CountsElementsNarrowerThanAByte) {
  EXPECT_TRUE(parse(safetensors_bytes(R"({"q":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", "abc")).ok());
  EXPECT_FALSE(parse(safetensors_bytes(R"({"q":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "ab")).ok());
}

TEST(SafetensorsHeader, AnEmptyTableIsAFile) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).ok());
}

struct BadFile {
  const char* name;
  std::string bytes;
  const char* message;
};
void PrintTo(const BadFile& bad, std::ostream* os) {
  *os << bad.name;
}

class SafetensorsBadFile : public testing::TestWithParam<BadFile> {};

TEST_P(SafetensorsBadFile, IsDataLossThatSaysWhy) {
  const auto header = parse(GetParam().bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.error().code, ErrorCode::kDataLoss);
  EXPECT_THAT(header.error().message, HasSubstr("some.safetensors"));
  EXPECT_THAT(header.error().message, HasSubstr(GetParam().message));
}

// One tensor "x" described by `members`, over `bytes` bytes of data.
std::string one(const std::string& members, size_t bytes) {
  return safetensors_bytes(R"({"x":{)" + members + "}}", std::string(bytes, 'd'));
}
std::string two(const std::string& offsets_x, const std::string& offsets_y, size_t bytes) {
  return safetensors_bytes(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets_x +
                               R"(},"y":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets_y + "}}",
                           std::string(bytes, 'd'));
}
std::string with_length(uint64_t n, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&n), sizeof(n)) + rest;
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsBadFile,
    testing::Values(
        BadFile{"empty", "", "too short"}, BadFile{"seven_bytes", "1234567", "too short"},
        BadFile{"header_past_end", with_length(100, "{}"), "cut off"},
        BadFile{"header_longer_than_any", with_length(kMaxHeaderBytes + 1, "{}"), "cut off"},
        BadFile{"header_length_wraps", with_length(UINT64_MAX, "{}"), "cut off"},
        BadFile{"header_of_no_bytes", with_length(0, ""), "does not begin"},
        BadFile{"header_after_space", safetensors_bytes(" {}", ""), "does not begin"},
        BadFile{"header_is_array", safetensors_bytes("[]", ""), "does not begin"},
        BadFile{"json_cut_off", safetensors_bytes(R"({"x":)", ""), "not valid JSON"},
        BadFile{"json_and_more", safetensors_bytes("{} {}", ""), "not valid JSON"},
        BadFile{"not_utf8", safetensors_bytes("{\"\xff\":1}", ""), "not valid JSON"},
        BadFile{"deep", safetensors_bytes("{\"x\":" + std::string(100000, '['), ""), "deeper"},
        BadFile{"name_twice",
                safetensors_bytes(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                  R"("x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                                  ""),
                "twice"},
        BadFile{"member_twice", one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])", 1), "twice"},
        BadFile{"metadata_of_numbers", safetensors_bytes(R"({"__metadata__":{"a":1}})", ""), "__metadata__"},
        BadFile{"metadata_is_list", safetensors_bytes(R"({"__metadata__":["a"]})", ""), "__metadata__"},
        BadFile{"tensor_is_a_number", safetensors_bytes(R"({"x":1})", ""), "exactly dtype"},
        BadFile{"no_dtype", one(R"("shape":[1],"data_offsets":[0,1])", 1), "exactly dtype"},
        BadFile{"extra_member", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"z":0)", 1), "exactly dtype"},
        BadFile{"dtype_is_a_number", one(R"("dtype":8,"shape":[1],"data_offsets":[0,1])", 1), "dtype is not"},
        BadFile{"shape_is_a_number", one(R"("dtype":"U8","shape":1,"data_offsets":[0,1])", 1), "shape is not"},
        BadFile{"negative_dimension", one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", 1), "not a dimension"},
        BadFile{"fractional_dimension", one(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])", 1),
                "not a dimension"},
        BadFile{"dimension_past_int64", one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])", 1),
                "not a dimension"},
        BadFile{"product_overflows", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
                "more elements"},
        BadFile{"bytes_overflow", one(R"("dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0])", 0),
                "more elements"},
        BadFile{"one_offset", one(R"("dtype":"U8","shape":[1],"data_offsets":[0])", 1), "two numbers"},
        BadFile{"negative_offset", one(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])", 1), "two numbers"},
        BadFile{"backwards", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1), "backwards"},
        BadFile{"past_the_end", one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])", 1), "beyond the end"},
        BadFile{"too_small", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4), "need 8 bytes"},
        BadFile{"too_large", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])", 8), "need 4 bytes"},
        BadFile{"overlap", two("[0,4]", "[2,6]", 6), "overlaps"},
        BadFile{"same_place", two("[0,4]", "[0,4]", 4), "overlaps"},
        BadFile{"gap_between", two("[0,4]", "[5,9]", 9), "gap"},
        BadFile{"gap_at_start", two("[1,5]", "[5,9]", 9), "gap"},
        BadFile{"bytes_at_end", two("[0,4]", "[4,8]", 9), "belong to no tensor"}),
    [](const auto& info) { return info.param.name; });

// The contract of parse_safetensors_header for every header that it accepts.
void expect_sound(const std::string& bytes) {
  const auto header = parse(bytes);
  if (!header.ok()) {
    EXPECT_EQ(header.error().code, ErrorCode::kDataLoss);
    return;
  }
  uint64_t total = 0;
  for (const auto& [name, entry] : *header) {
    ASSERT_LE(entry.begin, entry.end);
    ASSERT_LE(entry.end, bytes.size());
    total += entry.end - entry.begin;
  }
  ASSERT_LE(total, bytes.size());
}

// The time must be linear in the size of the header: quadratic, this would take an hour.
TEST(SafetensorsHeader, ManyTensors) {
  constexpr int kTensors = 300'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  }
  const std::string file = safetensors_bytes(header + "}", "");
  const auto parsed = parse_safetensors_header(std::as_bytes(std::span(file)), "f");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->size(), kTensors);
}

TEST(SafetensorsHeader, EveryTruncationIsAnError) {
  for (size_t n = 0; n < kGood.size(); ++n) EXPECT_FALSE(parse(kGood.substr(0, n)).ok()) << n;
}

TEST(SafetensorsHeader, RandomMutationsNeverBreakIt) {
  std::mt19937 random(7);
  const std::string pieces[] = {"[", "]", "{", "}", "\"", ",", ":", "-", "e9", "18446744073709551615", "null", "\xff"};
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = kGood;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.insert(at, pieces[random() % std::size(pieces)]);
          break;
      }
      if (bytes.empty()) break;
      // Keep the length prefix right in half of the rounds, so that the JSON after it is reached.
      if (bytes.size() > 36 && random() % 2 == 0) {
        const uint64_t n = bytes.size() - 36;
        bytes.replace(0, 8, reinterpret_cast<const char*>(&n), 8);
      }
    }
    expect_sound(bytes);
  }
}

}  // namespace
}  // namespace volley::weights
