// Protects: a GGUF header is read as it was written, and one that lies, ends early, never ends or is of another kind
// is refused with a sentence, before memory is asked for.
#include "gguf/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_folder_for_test.h"
#include "gguf/architecture.h"
#include "gguf/bytes_for_test.h"

namespace volley::gguf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<std::optional<Header>> parse(const std::string& bytes) {
  return Header::parse(std::as_bytes(std::span(bytes)), bytes.size(), "x.gguf");
}

std::string refusal(const std::string& bytes) {
  const auto header = parse(bytes);
  return header.ok() ? "" : header.error().message;
}

TEST(GgufHeader, ValuesAndTensorsAreThoseOfTheFile) {
  const std::string bytes = Bytes()
                                .text("name", "small")
                                .number("count", 7)
                                .real("real", 0.5f)
                                .boolean("yes", true)
                                .texts("tokens", {"a", "", "bc"})
                                .numbers<int16_t>("list", 3, {-2, 300})
                                .tensor("one", {4, 3}, 0, 48)
                                .tensor("two", {64, 2}, 2, 72)
                                .str();
  const auto parsed = parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const Header& header = **parsed;
  EXPECT_EQ(header.text("name"), "small");
  EXPECT_EQ(header.number("count"), 7);
  EXPECT_EQ(header.number("real"), 0.5);
  EXPECT_EQ(header.boolean("yes"), true);
  EXPECT_THAT(header.texts("tokens"), ElementsAre("a", "", "bc"));
  EXPECT_THAT(header.numbers("list"), ElementsAre(-2, 300));
  EXPECT_EQ(header.number("name"), std::nullopt);
  EXPECT_EQ(header.text("nothing"), std::nullopt);
  ASSERT_EQ(header.tensors().size(), 2u);
  EXPECT_THAT(header.tensors()[0].shape, ElementsAre(3, 4));
  EXPECT_EQ(header.tensors()[0].end - header.tensors()[0].begin, 48u);
  EXPECT_EQ(header.tensors()[1].end - header.tensors()[1].begin, 72u);
  EXPECT_EQ(header.tensors()[1].begin % 32, 0u);
}

TEST(GgufHeader, AFileThatEndsAnywhereIsRefused) {
  const std::string bytes = tiny_model("llama").texts("tokens", {"a", "b"}).str();
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(refusal(bytes.substr(0, size)), "") << size;
  EXPECT_THAT(refusal(bytes.substr(0, bytes.size() - 1)), HasSubstr("cut off"));
}

TEST(GgufHeader, BytesThatAreMissingAreAskedFor) {
  const std::string bytes = tiny_model("llama").str();
  for (const size_t size : {size_t{4}, size_t{20}, size_t{100}}) {
    const auto header = Header::parse(std::as_bytes(std::span(bytes)).first(size), bytes.size(), "x.gguf");
    ASSERT_TRUE(header.ok()) << header.error().message;
    EXPECT_FALSE(header->has_value()) << size;
  }
}

TEST(GgufHeader, WhatLiesIsRefusedByName) {
  const std::string start = "GGUF" + raw(uint32_t{3});
  EXPECT_THAT(refusal(start + raw(UINT64_MAX) + raw(uint64_t{0})), HasSubstr("18446744073709551615 tensors"));
  EXPECT_THAT(refusal(start + raw(uint64_t{0}) + raw(uint64_t{1} << 40)), HasSubstr("values"));
  EXPECT_THAT(refusal(start + raw(uint64_t{0}) + raw(uint64_t{1}) + raw(UINT64_MAX)), HasSubstr("name of"));
  EXPECT_THAT(refusal(Bytes().add("key", 13, "").str()), HasSubstr("unknown type 13"));
  EXPECT_THAT(refusal(Bytes().add("key", 9, raw(uint32_t{9}) + raw(uint64_t{1})).str()), HasSubstr("arrays"));
  EXPECT_THAT(refusal(Bytes().add("key", 9, raw(uint32_t{10}) + raw(UINT64_MAX / 4)).str()), HasSubstr("cut off"));
  EXPECT_THAT(refusal(Bytes().add("key", 9, raw(uint32_t{8}) + raw(UINT64_MAX)).str()), HasSubstr("cut off"));
  EXPECT_THAT(refusal(Bytes().add("key", 8, raw(UINT64_MAX - 7)).str()), HasSubstr("cut off"));
  EXPECT_THAT(refusal(Bytes().number("twice", 1).number("twice", 2).str()), HasSubstr("\"twice\" twice"));
  EXPECT_THAT(refusal(Bytes().tensor("t", {4}, 0, 16).tensor("t", {4}, 0, 16).str()), HasSubstr("is there twice"));
  EXPECT_THAT(refusal(Bytes().tensor("t", {}, 0, 16).str()), HasSubstr("0 dimensions"));
  EXPECT_THAT(refusal(Bytes().tensor("t", {1, 1, 1, 1, 1}, 0, 16).str()), HasSubstr("5 dimensions"));
  EXPECT_THAT(refusal(Bytes().tensor("t", {4, 0}, 0, 16).str()), HasSubstr("dimension of 0"));
  EXPECT_THAT(refusal(Bytes().tensor("t", {uint64_t{1} << 62, uint64_t{1} << 62}, 0, 16).str()), HasSubstr("elements"));
  EXPECT_THAT(refusal(Bytes().tensor("t", {33}, 2, 32).str()), HasSubstr("blocks of Q4_0 hold 32"));
  EXPECT_THAT(refusal(Bytes().tensor("t", {4000}, 0, 16).str()), HasSubstr("\"t\" does: it was cut off"));
  EXPECT_THAT(refusal(Bytes().tensor_at("t", {4}, 0, UINT64_MAX - 31, 16).str()), HasSubstr("cut off"));
  EXPECT_THAT(refusal(Bytes().tensor_at("t", {4}, 0, 4, 32).str()), HasSubstr("no multiple of the 32 bytes"));
  EXPECT_THAT(refusal(Bytes().tensor("s", {16}, 0, 64).tensor_at("t", {4}, 0, 32, 32).str()), HasSubstr("overlaps"));
  for (const uint32_t alignment : {0u, 4u, 48u, 1u << 30}) {
    EXPECT_THAT(refusal(Bytes().number("general.alignment", alignment).str()), HasSubstr("general.alignment"));
  }
}

TEST(GgufHeader, OtherKindsOfFilesSaySo) {
  EXPECT_THAT(refusal("PK\x03\x04 and more"), HasSubstr("no GGUF file"));
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), HasSubstr("Git LFS pointer"));
  Bytes old = tiny_model("llama");
  old.version = 2;
  EXPECT_THAT(refusal(old.str()), HasSubstr("of version 2"));
  old.version = 3u << 24;
  EXPECT_THAT(refusal(old.str()), HasSubstr("big-endian"));
  old.version = 4;
  EXPECT_THAT(refusal(old.str()), HasSubstr("of version 4"));
}

TEST(GgufFile, PartsAreOneModel) {
  const auto file = open_file("tests/data/gguf/qwen2_tied-00001-of-00002.gguf");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->parts.size(), 2u);
  const auto whole = open_file("tests/data/gguf/qwen2_tied.gguf");
  ASSERT_TRUE(whole.ok());
  for (const Tensor& tensor : whole->header().tensors()) EXPECT_NE(file->tensor(tensor.name), nullptr) << tensor.name;
  const auto second = open_file("tests/data/gguf/qwen2_tied-00002-of-00002.gguf");
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("name the first, whose name ends in -00001-of-00002.gguf"));
}

TEST(GgufFile, APartThatIsMissingIsNamed) {
  const TempFolder folder;
  folder.write("m-00001-of-00003.gguf", tiny_model("llama").number("split.no", 0).number("split.count", 3).str());
  const auto file = open_file(folder.path() + "/m-00001-of-00003.gguf");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr("m-00002-of-00003.gguf: fetch it, too"));
}

TEST(GgufFile, WhatIsNoModelThatIsBuiltSaysWhatToDo) {
  const TempFolder folder;
  const auto refusal_of = [&](const Bytes& bytes) {
    folder.write("m.gguf", bytes.str());
    const auto file = open_file(folder.path() + "/m.gguf");
    const auto architecture = architecture_of(*file);
    return architecture.ok() ? std::string() : architecture.error().message;
  };
  EXPECT_EQ(refusal_of(tiny_model("qwen3")), "");
  EXPECT_THAT(refusal_of(tiny_model("mamba")),
              HasSubstr("\"mamba\", which is not built for GGUF files; built are: deepseek2, dflash, gem"));
  EXPECT_THAT(refusal_of(tiny_model("clip")), HasSubstr("vision projector (mmproj)"));
  EXPECT_THAT(refusal_of(tiny_model("llama").text("general.type", "adapter")), HasSubstr("\"adapter\""));
  EXPECT_THAT(refusal_of(Bytes()), HasSubstr("general.architecture"));
}

}  // namespace
}  // namespace volley::gguf
