#include "model/kv_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace volley::model {
namespace {

using namespace std::string_literals;

// A target of windows of 8 between full layers, and a drafter whose windows are wider.
KvLayout mixed() {
  return kv_layout({{2, 16, 0}, {2, 16, 8}, {2, 16, 0}, {2, 16, 8}, {1, 32, 24}, {1, 32, 0}, {1, 32, 24}}, 16,
                   DType::kF32);
}

TEST(KvLayout, HasAGroupForEachSizeOfWindow) {
  const KvLayout layout = mixed();
  EXPECT_EQ(layout.group_of, (std::vector<size_t>{0, 1, 0, 1, 2, 0, 2}));
  ASSERT_EQ(layout.groups.size(), 3u);
  const std::vector<int32_t> windows = {0, 8, 24};
  const int64_t layer = 2 * 2 * 16 * 16 * 4;  // K and V, 2 heads of 16 or one of 32, 16 positions
  const std::vector<int64_t> bytes = {3 * layer, 2 * layer, 2 * layer};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(layout.groups[i].life, i == 0 ? kv::Life::kWhole : kv::Life::kWindow);
    EXPECT_EQ(layout.groups[i].window, windows[i]);
    EXPECT_EQ(layout.groups[i].bytes, bytes[i]);
  }
  EXPECT_EQ(kv_page_bytes(layout.layers, 16, DType::kF32), 7 * layer);
  const KvLayout windows_alone = kv_layout({{2, 16, 8}}, 16, DType::kBF16);
  ASSERT_EQ(windows_alone.groups.size(), 2u);
  EXPECT_EQ(windows_alone.groups[0].bytes, 0) << "nothing lies there, but pages are counted";
}

TEST(KvMemory, LayersOfAGroupLieInItsPagesAndNowhereElse) {
  KvLayout layout = mixed();
  for (size_t i = 0; i < 3; ++i) layout.groups[i].pages = static_cast<int64_t>(3 + i);
  auto device = make_cpu_device(1);
  ASSERT_TRUE(device.ok());
  const auto memory = KvMemory::allocate(**device, layout);
  ASSERT_TRUE(memory.ok());
  const auto layers = (*memory)->layers(0, 7);
  // memory of every layer and page, the scrap page too
  std::vector<std::pair<const std::byte*, const std::byte*>> blocks;
  for (size_t i = 0; i < layers.size(); ++i) {
    const ops::KvLayer& layer = layers[i];
    const kv::Group& group = layout.groups[layout.group_of[i]];
    EXPECT_EQ(layer.page_stride, group.bytes);
    for (int32_t page = 0; page <= kv::scrap_page(group).value; ++page) {
      std::byte* begin = layer.base + page * layer.page_stride;
      const int64_t bytes = ops::kv_layer_bytes(16, layer.kv_heads, layer.head_dim, layer.dtype);
      std::fill_n(begin, bytes, std::byte{1});  // the test's own memory
      blocks.emplace_back(begin, begin + bytes);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); ++i) EXPECT_LE(blocks[i - 1].second, blocks[i].first);
  EXPECT_EQ((*memory)->groups_of_views(0, 4)[ops::kWindowView], 1u);
  EXPECT_EQ((*memory)->groups_of_views(4, 3)[ops::kWindowView], 2u);
  EXPECT_EQ((*memory)->groups_of_views(4, 3)[ops::kWholeView], 0u);
  EXPECT_DEATH((*memory)->groups_of_views(0, 7), "CHECK failed");
}

struct Stored {
  std::string name, dtype, bytes;
};

// The scales that are read for a layer with these one-element tensors.
Result<KvShape> read_scales(const std::vector<Stored>& tensors, const weights::Quantisation* quantisation = nullptr) {
  const TempFolder folder;
  std::string header, data;
  for (const Stored& tensor : tensors) {
    header += (header.empty() ? "" : ",") + ("\"layers.0.self_attn." + tensor.name) + R"(":{"dtype":")" + tensor.dtype +
              R"(","shape":[],"data_offsets":[)" + std::to_string(data.size()) + ",";
    data += tensor.bytes;
    header += std::to_string(data.size()) + "]}";
  }
  folder.write("model.safetensors", weights::safetensors_bytes("{" + header + "}", data));
  const auto checkpoint = weights::open_safetensors(folder.path());
  if (!checkpoint.ok()) return checkpoint.error();
  Decoder spec;
  spec.layers.resize(1);
  std::vector<KvShape> shapes = kv_shapes(spec);
  VOLLEY_RETURN_IF_ERROR(read_kv_scales(**checkpoint, quantisation, spec, shapes));
  return shapes.at(0);
}

// A layer whose k_scale is stored as these bytes.
Result<float> read_k_scale(const std::string& dtype, const std::string& bytes) {
  VOLLEY_ASSIGN(const KvShape shape, read_scales({{"k_scale", dtype, bytes}}));
  EXPECT_EQ(shape.v_scale, 1);
  return shape.k_scale;
}

TEST(KvScales, AreReadInTheirOwnType) {
  const std::vector<std::pair<std::string, std::string>> stored = {
      {"F32", std::string("\0\0\x20\x3d", 4)}, {"F16", std::string("\0\x29", 2)}, {"BF16", "\x20\x3d"}};
  for (const auto& [dtype, bytes] : stored) {
    const auto scale = read_k_scale(dtype, bytes);
    ASSERT_TRUE(scale.ok()) << dtype << scale.error().message;
    EXPECT_EQ(*scale, 0.0390625f) << dtype;
  }
}

TEST(KvScales, OfOtherTypesAreRefusedByName) {
  using testing::HasSubstr;
  const std::vector<std::pair<std::string, size_t>> others = {{"F64", 8}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I32", 4}};
  for (const auto& [dtype, size] : others) {
    const auto scale = read_k_scale(dtype, std::string(size, '\x20'));
    ASSERT_FALSE(scale.ok()) << dtype;
    EXPECT_EQ(scale.error().code, ErrorCode::kUnimplemented);
    EXPECT_THAT(scale.error().message, HasSubstr("k_scale\" has dtype " + dtype));
    EXPECT_THAT(scale.error().message, HasSubstr("--kv-cache-dtype"));
  }
  const auto nothing = read_k_scale("F32", std::string(4, '\0'));
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().code, ErrorCode::kDataLoss);
}

const std::string kTwo = "\0\x40"s, kHalf = "\0\x3f"s;  // in BF16

// By every name that quantisers use.
TEST(KvScales, AreFoundByTheirNames) {
  for (const auto& [k, v] : {std::pair{"k_scale", "v_scale"},
                             {"k_proj.k_scale", "v_proj.v_scale"},
                             {"attn.k_scale", "attn.v_scale"},
                             {"k_proj.output_scale", "v_proj.output_scale"}}) {
    const auto shape = read_scales({{k, "BF16", kTwo}, {v, "BF16", kHalf}});
    ASSERT_TRUE(shape.ok()) << k << shape.error().message;
    EXPECT_EQ(shape->k_scale, 2) << k;
    EXPECT_EQ(shape->v_scale, 0.5f) << v;
  }
  const auto both = read_scales({{"kv_scale", "BF16", kTwo}});
  ASSERT_TRUE(both.ok()) << both.error().message;
  EXPECT_EQ(both->k_scale, 2);
  EXPECT_EQ(both->v_scale, 2);
  const auto other = read_scales({{"q_proj.output_scale", "BF16", kTwo}});
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_EQ(other->k_scale, 1);
}

// Such numbers would give e4m3 a wrong range.
TEST(KvScales, OfAnotherCacheAreRefused) {
  const weights::Quantisation nvfp4 = {.name = "modelopt NVFP4", .kv_format = "NVFP4"};
  const auto refused = read_scales({{"v_proj.v_scale", "BF16", kTwo}}, &nvfp4);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnimplemented);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("v_scale\" is a scale for a cache of NVFP4"));
  EXPECT_THAT(refused.error().message, testing::HasSubstr("--kv-cache-dtype"));
  EXPECT_TRUE(read_scales({{"q_proj.input_scale", "BF16", kTwo}}, &nvfp4).ok()) << "there is none to apply";
  const weights::Quantisation fp8 = {.name = "modelopt FP8"};
  EXPECT_EQ(read_scales({{"kv_scale", "BF16", kTwo}}, &fp8)->v_scale, 2);
}

}  // namespace
}  // namespace volley::model
