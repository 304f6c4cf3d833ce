// Protects: tensors come out with the bytes that were written, from one file or several, and each way in which a folder
// can be wrong gives an error that names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "weights/checkpoint.h"
#include "weights/test_files.h"

namespace volley::weights {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kFirst = safetensors_bytes(
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]}})",
    "aaaabbbbBBBBBBBBBBBB");
const std::string kSecond = safetensors_bytes(R"({"c":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}})", "cccccc");

std::string bytes_of(const SourceTensor& tensor, size_t n) {
  return std::string(reinterpret_cast<const char*>(tensor.data), n);
}

void expect_error(const Status& status, ErrorCode code, const testing::Matcher<const std::string&>& message) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(error_code_name(status.error().code), std::string(error_code_name(code)));
  EXPECT_THAT(status.error().message, message);
}
template <typename T>
Status status_of(const Result<T>& result) {
  return result.ok() ? Status() : Status(result.error());
}

TEST(Safetensors, ReadsTensorsOfASingleFile) {
  const TempFolder folder;
  folder.write("model.safetensors", kFirst);
  const auto checkpoint = open_safetensors(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_TRUE((*checkpoint)->has("a"));
  EXPECT_FALSE((*checkpoint)->has("c"));
  EXPECT_EQ((*checkpoint)->main_dtype(), DType::kBF16);
  const SourceTensor b = *(*checkpoint)->get("b", std::vector<int64_t>{2, 3});
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_EQ(bytes_of(b, 12), "BBBBBBBBBBBB");
}

// Both kinds of access read the same bytes of a part of a tensor, and only those.
TEST(Safetensors, ReadsAPartOfATensor) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_bytes(R"({"s":{"dtype":"BF16","shape":[2,1,2],"data_offsets":[0,8]}})", "AABBCCDD"));
  const std::vector<int64_t> whole = {2, 1, 2}, part = {1, 2};
  for (const FileAccess access : {FileAccess::kMap, FileAccess::kRead}) {
    const auto checkpoint = open_safetensors(folder.path(), access);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ((*checkpoint)->takes_memory(), access == FileAccess::kRead);
    const auto second = (*checkpoint)->get_part("s", whole, 2, part);
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_EQ(bytes_of(*second, 4), "CCDD");
    EXPECT_EQ(second->shape, part);
    EXPECT_TRUE((*checkpoint)->check("s", whole).ok());
    EXPECT_EQ(status_of((*checkpoint)->get_part("s", part, 0, part)).error().code, ErrorCode::kFailedPrecondition);
  }
}

// Maps between vocabularies are whole numbers of any of these types, negative offsets among them.
TEST(Safetensors, ReadsWholeNumbers) {
  const TempFolder folder;
  const auto bytes = [](auto... values) {
    std::string text;
    ((text.append(reinterpret_cast<const char*>(&values), sizeof(values))), ...);
    return text;
  };
  folder.write("model.safetensors", safetensors_bytes(R"({"wide":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                                                      R"("narrow":{"dtype":"I32","shape":[2],"data_offsets":[16,24]},)"
                                                      R"("flags":{"dtype":"BOOL","shape":[3],"data_offsets":[24,27]},)"
                                                      R"("real":{"dtype":"F16","shape":[1],"data_offsets":[27,29]}})",
                                                      bytes(int64_t{-5}, int64_t{1} << 40, int32_t{-7}, int32_t{9},
                                                            char{0}, char{1}, char{1}, int16_t{0})));
  for (const FileAccess access : {FileAccess::kMap, FileAccess::kRead}) {
    const auto checkpoint = open_safetensors(folder.path(), access);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ(*(*checkpoint)->integers("wide", 2), (std::vector<int64_t>{-5, int64_t{1} << 40}));
    EXPECT_EQ(*(*checkpoint)->integers("narrow", 2), (std::vector<int64_t>{-7, 9}));
    EXPECT_EQ(*(*checkpoint)->integers("flags", 3), (std::vector<int64_t>{0, 1, 1}));
    expect_error((*checkpoint)->check_integers("real", 1), ErrorCode::kUnimplemented,
                 AllOf(HasSubstr("real"), HasSubstr("F16"), HasSubstr("I64")));
    expect_error((*checkpoint)->check_integers("wide", 3), ErrorCode::kFailedPrecondition,
                 AllOf(HasSubstr("wide"), HasSubstr("[2]"), HasSubstr("[3]")));
    expect_error(status_of((*checkpoint)->integers("absent", 1)), ErrorCode::kNotFound, HasSubstr("absent"));
  }
}

// Without a mapping, bytes that were read stay whatever happens to the file, and unreadable ones are an error.
TEST(Safetensors, FilesThatAreReadMayBeCutShort) {
  const TempFolder folder;
  folder.write("model.safetensors", kFirst);
  const auto checkpoint = open_safetensors(folder.path(), FileAccess::kRead);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const SourceTensor b = *(*checkpoint)->get("b", std::vector<int64_t>{2, 3});
  folder.write("model.safetensors", kFirst.substr(0, kFirst.size() - 14));
  EXPECT_EQ(bytes_of(b, 12), "BBBBBBBBBBBB");
  (*checkpoint)->done_with(b);
  EXPECT_EQ(bytes_of(b, 12), "BBBBBBBBBBBB");
  expect_error(status_of((*checkpoint)->get("a", std::vector<int64_t>{2})), ErrorCode::kDataLoss,
               AllOf(HasSubstr(folder.path()), HasSubstr("was cut short")));
  folder.write("model.safetensors", kFirst.substr(0, 5));
  EXPECT_FALSE(open_safetensors(folder.path(), FileAccess::kRead).ok());
  folder.write("model.safetensors", kFirst.substr(0, 50));
  EXPECT_FALSE(open_safetensors(folder.path(), FileAccess::kRead).ok());
}

TEST(Safetensors, TensorsOutliveTheCheckpoint) {
  const TempFolder folder;
  folder.write("model.safetensors", kFirst);
  SourceTensor a;
  {
    const auto checkpoint = open_safetensors(folder.path());
    a = *(*checkpoint)->get("a", std::vector<int64_t>{2});
  }
  EXPECT_EQ(bytes_of(a, 8), "aaaabbbb");
}

// The header's length decides where the data begins; each of the eight offsets must give aligned tensors.
TEST(Safetensors, TensorsAreAlignedWhereverTheFileHasThem) {
  for (int padding = 0; padding < 8; ++padding) {
    const TempFolder folder;
    folder.write("model.safetensors", safetensors_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" +
                                                            std::string(padding, ' '),
                                                        "aaaabbbb"));
    const auto checkpoint = open_safetensors(folder.path());
    const SourceTensor a = *(*checkpoint)->get("a", std::vector<int64_t>{2});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 4, 0u) << padding;
    EXPECT_EQ(bytes_of(a, 8), "aaaabbbb");
    (*checkpoint)->done_with(a);
    EXPECT_EQ(bytes_of(a, 8), "aaaabbbb") << "done_with must not touch a copy";
  }
}

TEST(Safetensors, DroppedPagesCanBeReadAgain) {
  const TempFolder folder;
  std::string data(1 << 16, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 >> 3);
  folder.write("model.safetensors",
               safetensors_bytes(R"({"x":{"dtype":"F32","shape":[128,128],"data_offsets":[0,65536]}})", data));
  const auto checkpoint = open_safetensors(folder.path());
  const SourceTensor x = *(*checkpoint)->get("x", std::vector<int64_t>{128, 128});
  (*checkpoint)->done_with(x);
  EXPECT_EQ(bytes_of(x, data.size()), data);
}

TEST(Safetensors, ReadsShards) {
  const TempFolder folder;
  folder.write("one.safetensors", kFirst);
  folder.write("two.safetensors", kSecond);
  folder.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":26},"weight_map":{"a":"one.safetensors","b":"one.safetensors",)"
               R"("c":"two.safetensors"}})");
  const auto checkpoint = open_safetensors(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(bytes_of(*(*checkpoint)->get("a", std::vector<int64_t>{2}), 8), "aaaabbbb");
  EXPECT_EQ(bytes_of(*(*checkpoint)->get("c", std::vector<int64_t>{3}), 6), "cccccc");
}

TEST(Safetensors, WrongRequestsNameTensorFileAndShapes) {
  const TempFolder folder;
  folder.write("model.safetensors", safetensors_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                                      R"("q":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[8,12]}})",
                                                      "aaaabbbbqqqq"));
  const auto checkpoint = open_safetensors(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const std::string file = folder.path() + "/model.safetensors";
  expect_error(status_of((*checkpoint)->get("z", std::vector<int64_t>{5, 6})), ErrorCode::kNotFound,
               AllOf(HasSubstr("\"z\""), HasSubstr(file), HasSubstr("[5, 6]")));
  expect_error(status_of((*checkpoint)->get("a", std::vector<int64_t>{1, 2})), ErrorCode::kFailedPrecondition,
               AllOf(HasSubstr("\"a\""), HasSubstr(file), HasSubstr("[2]"), HasSubstr("[1, 2]")));
  expect_error(status_of((*checkpoint)->get("q", std::vector<int64_t>{4})), ErrorCode::kUnimplemented,
               AllOf(HasSubstr("\"q\""), HasSubstr(file), HasSubstr("F8_E4M3")));
}

TEST(Safetensors, MissingFoldersAndFilesAreNamed) {
  const TempFolder folder;
  expect_error(status_of(open_safetensors(folder.path() + "/nowhere")), ErrorCode::kNotFound, HasSubstr("nowhere"));
  expect_error(status_of(open_safetensors(folder.path())), ErrorCode::kNotFound,
               AllOf(HasSubstr(folder.path()), HasSubstr("model.safetensors.index.json")));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors"}})");
  expect_error(status_of(open_safetensors(folder.path())), ErrorCode::kNotFound,
               AllOf(HasSubstr("one.safetensors"), HasSubstr("incomplete")));
}

TEST(Safetensors, AFolderIsNotACheckpointFile) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/model.safetensors");
  expect_error(status_of(open_safetensors(folder.path())), ErrorCode::kInvalidArgument, HasSubstr("regular file"));
}

TEST(Safetensors, ADamagedShardIsNamed) {
  const TempFolder folder;
  folder.write("one.safetensors", kFirst.substr(0, kFirst.size() - 1));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors"}})");
  expect_error(status_of(open_safetensors(folder.path())), ErrorCode::kDataLoss, HasSubstr("one.safetensors"));
}

// An index's entries for kFirst (a, b) and kSecond (c), and where a and c are found.
TEST(Safetensors, TensorsAreWhereShardsHoldThem) {
  for (const char* map : {
           R"({"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors","d":"two.safetensors"})",
           R"({"a":"two.safetensors","b":"one.safetensors","c":"one.safetensors"})",
           R"({"b":"one.safetensors","c":"two.safetensors"})",
           R"({"lm_head.weight":"one.safetensors","model.rotary_emb.inv_freq":"two.safetensors"})",
       }) {
    const TempFolder folder;
    folder.write("one.safetensors", kFirst);
    folder.write("two.safetensors", kSecond);
    folder.write("model.safetensors.index.json", std::string(R"({"weight_map":)") + map + "}");
    for (const FileAccess access : {FileAccess::kMap, FileAccess::kRead}) {
      const auto checkpoint = open_safetensors(folder.path(), access);
      ASSERT_TRUE(checkpoint.ok()) << map << checkpoint.error().message;
      EXPECT_EQ((*checkpoint)->names(), (std::vector<std::string>{"a", "b", "c"})) << map;
      EXPECT_EQ(bytes_of(*(*checkpoint)->get("a", std::vector<int64_t>{2}), 8), "aaaabbbb");
      EXPECT_EQ(bytes_of(*(*checkpoint)->get("c", std::vector<int64_t>{3}), 6), "cccccc");
      expect_error(status_of((*checkpoint)->get("d", std::vector<int64_t>{3})), ErrorCode::kNotFound,
                   AllOf(HasSubstr("\"d\""), HasSubstr("incomplete")));
    }
  }
}

TEST(Safetensors, AnIndexDecidesWhichOfTwoTensorsCounts) {
  const std::string other = safetensors_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "xxxxyyyy");
  const auto a_of = [&](const char* map) {
    const TempFolder folder;
    folder.write("one.safetensors", kFirst);
    folder.write("three.safetensors", other);
    folder.write("two.safetensors", kSecond);
    folder.write("model.safetensors.index.json", std::string(R"({"weight_map":)") + map + "}");
    const auto checkpoint = open_safetensors(folder.path());
    if (!checkpoint.ok()) return checkpoint.error().message;
    return bytes_of(*(*checkpoint)->get("a", std::vector<int64_t>{2}), 8);
  };
  EXPECT_EQ(a_of(R"({"a":"three.safetensors","b":"one.safetensors"})"), "xxxxyyyy");
  EXPECT_EQ(a_of(R"({"a":"one.safetensors","z":"three.safetensors"})"), "aaaabbbb");
  for (const char* unclear : {R"({"b":"one.safetensors","z":"three.safetensors"})",
                              R"({"a":"two.safetensors","b":"one.safetensors","z":"three.safetensors"})"}) {
    EXPECT_THAT(a_of(unclear), AllOf(HasSubstr("\"a\" counts"), HasSubstr("one.safetensors and"),
                                     HasSubstr("three.safetensors both")));
  }
}

// A clone's placeholder for weights before `git lfs pull`.
TEST(Safetensors, AGitLfsPointerIsNamed) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d1"
      "7e2393\nsize 12345\n";
  for (const FileAccess access : {FileAccess::kMap, FileAccess::kRead}) {
    for (const char* name : {"model.safetensors", "model.safetensors.index.json", "one.safetensors"}) {
      const TempFolder folder;
      if (name == std::string("one.safetensors")) {
        folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors"}})");
      }
      folder.write(name, pointer);
      expect_error(status_of(open_safetensors(folder.path(), access)), ErrorCode::kDataLoss,
                   AllOf(HasSubstr(folder.path() + "/" + name + " is a Git LFS pointer"), HasSubstr("git lfs pull")));
    }
  }
}

TEST(Safetensors, AnIndexReachesNoOtherFolder) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/sub");
  folder.write("outside.safetensors", kFirst);
  const std::string sub = folder.path() + "/sub";
  for (const char* shard : {"\"../outside.safetensors\"", "\"/etc/passwd\"", "\"..\"", "\"\"", "\"a\\\\b\"",
                            "\"one\\u0000.safetensors\"", "7"}) {
    folder.write("sub/model.safetensors.index.json", std::string(R"({"weight_map":{"a":)") + shard + "}}");
    expect_error(status_of(open_safetensors(sub)), ErrorCode::kDataLoss,
                 AllOf(HasSubstr("\"a\""), HasSubstr("plain name")));
  }
}

TEST(Safetensors, AnIndexOfAnotherFormIsDamaged) {
  for (const char* index : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":)",
                            R"({"weight_map":{"a":"x","a":"y"}})"}) {
    const TempFolder folder;
    folder.write("model.safetensors.index.json", index);
    expect_error(status_of(open_safetensors(folder.path())), ErrorCode::kDataLoss,
                 HasSubstr("model.safetensors.index.json"));
  }
}

// Checkpoints of the repository, as independent writers made them: one file, and shards with an index.
TEST(Safetensors, ReadsFilesOfOtherWriters) {
  const auto pocket = open_safetensors("models/pocket");
  ASSERT_TRUE(pocket.ok()) << pocket.error().message;
  EXPECT_EQ((*pocket)->main_dtype(), DType::kBF16);
  EXPECT_TRUE((*pocket)->get("model.embed_tokens.weight", std::vector<int64_t>{2048, 256}).ok());
  const auto sharded = open_safetensors("tests/data/targets/sharded");
  ASSERT_TRUE(sharded.ok()) << sharded.error().message;
  EXPECT_TRUE((*sharded)->get("lm_head.weight", std::vector<int64_t>{101, 64}).ok());
}

}  // namespace
}  // namespace volley::weights
