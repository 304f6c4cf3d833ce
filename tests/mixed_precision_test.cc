// Protects: in float32 every matrix of a checkpoint has the precision that it has in the file, whatever most of the
// file is in. Logits of a mixed checkpoint are those of the same values all in F32, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "model_runner.h"
#include "weights/safetensors_header.h"
#include "weights/test_files.h"

namespace volley::testing {
namespace {

constexpr const char* kSource = "tests/data/targets/odd_vocab_linear";  // all BF16, with a head of its own

Float16 truncated(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
  if (exponent < 1 || exponent > 30) return {0};
  return {static_cast<uint16_t>((bits >> 16 & 0x8000) | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ff))};
}

// The dtype of a tensor in the mixed checkpoint: the head, a part of a fused matrix, one that attention's output meets.
std::string mixed_dtype(const std::string& name) {
  if (name == "lm_head.weight" || name.ends_with("0.self_attn.k_proj.weight")) return "F32";
  if (name.ends_with("1.self_attn.o_proj.weight") || name.ends_with("1.mlp.down_proj.weight")) return "F32";
  if (name.ends_with("1.mlp.up_proj.weight") || name.ends_with("0.mlp.down_proj.weight")) return "F16";
  return "BF16";
}

// The mixed checkpoint's version of a source value: with more digits than BF16 has, if its dtype can hold them.
float mixed_value(float source, const std::string& dtype) {
  if (dtype == "F32") return source * 1.0012345f;
  if (dtype == "F16") return to_float(truncated(source * 1.0012345f));
  return source;
}

void append(std::string& data, float value, const std::string& dtype) {
  const auto add = [&data](const auto& stored) { data.append(reinterpret_cast<const char*>(&stored), sizeof(stored)); };
  if (dtype == "F32") return add(value);
  if (dtype == "F16") return add(truncated(value));
  add(to_bfloat16(value));
}

// A copy of the source with the mixed checkpoint's values, where stored_as says of each tensor how it is stored.
void write_checkpoint(const TempFolder& folder, std::string (*stored_as)(const std::string& name)) {
  std::filesystem::copy(std::string(kSource) + "/config.json", folder.path());
  std::ifstream file(std::string(kSource) + "/model.safetensors", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto source = weights::parse_safetensors_header(std::as_bytes(std::span(bytes)), kSource);
  ASSERT_TRUE(source.ok()) << source.error().message;
  std::string header = "{", data;
  for (const auto& [name, entry] : *source) {
    ASSERT_EQ(entry.dtype, "BF16");
    const size_t begin = data.size();
    for (uint64_t at = entry.begin; at < entry.end; at += sizeof(BFloat16)) {
      BFloat16 value;
      std::memcpy(&value, bytes.data() + at, sizeof(value));
      append(data, mixed_value(to_float(value), mixed_dtype(name)), stored_as(name));
    }
    std::string shape;
    for (const int64_t dim : entry.shape) shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    header += (header == "{" ? "\"" : ",\"") + name + "\":{\"dtype\":\"" + stored_as(name) + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
  }
  folder.write("model.safetensors", weights::safetensors_bytes(header + "}", data));
}

std::vector<std::vector<float>> logits(const TempFolder& folder) {
  std::vector<TokenId> ids;
  for (TokenId id = 1; id <= 40; ++id) ids.push_back(id * 37 % 131);
  return ModelRunner(folder.path(), "", ComputeType::kFloat32, 64).logits(ids);
}

// A folder's name comes from the test's, so there is one at a time.
std::vector<std::vector<float>> logits_as(std::string (*stored_as)(const std::string& name)) {
  const TempFolder folder;
  write_checkpoint(folder, stored_as);
  return logits(folder);
}

TEST(MixedPrecision, LogitsAreThoseOfAFloat32Checkpoint) {
  const auto mixed = logits_as(mixed_dtype);
  EXPECT_EQ(mixed, logits_as([](const std::string&) -> std::string { return "F32"; }));
  // The values do not fit into BF16: rounding the head alone shows.
  EXPECT_NE(mixed, logits_as([](const std::string& name) -> std::string {
              return name == "lm_head.weight" ? "BF16" : mixed_dtype(name);
            }));
}

}  // namespace
}  // namespace volley::testing
