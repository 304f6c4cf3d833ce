// Copies of a checkpoint whose linear layers are codes of random bits, and the same with their values.
#pragma once

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/temp_folder_for_test.h"
#include "device/dtype.h"

namespace volley::weights {

// A way to store a matrix [n, k] of random values with a standard deviation near size / sqrt(k). Rows are whole bytes.
struct TestCoding {
  struct Tensor {
    std::string suffix, dtype;  // of the weight's name; as the file spells it
    std::vector<int64_t> shape;
    std::string bytes;
  };
  const char* name;
  const char* config;      // quantization_config
  int64_t columns_of = 1;  // k is a multiple of it
  // Fills `values` [n, k] and returns the tensors that stand for them.
  std::vector<Tensor> (*make)(std::mt19937& random, int64_t n, int64_t k, float size, std::vector<float>& values);
};

inline std::string bytes_of(const auto& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
}

inline const TestCoding kTestCodings[] = {
    {"fp8", R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]})", 1,
     [](std::mt19937& random, int64_t n, int64_t k, float size,
        std::vector<float>& values) -> std::vector<TestCoding::Tensor> {
       const float scale = 0.25f * size / std::sqrt(static_cast<float>(k));
       std::string codes;
       for (float& value : values) {
         codes += static_cast<char>((random() & 0x87) | (0x38 + (random() % 3 << 3)));  // from 1 to 7.5 and negative
         const auto code = static_cast<uint8_t>(codes.back());
         value = std::ldexp(1 + static_cast<float>(code & 7) / 8, (code >> 3 & 15) - 7) * (code > 127 ? -scale : scale);
       }
       return {{"weight", "F8_E4M3", {n, k}, codes}, {"weight_scale", "F32", {}, bytes_of(std::vector{scale})}};
     }},
    {"int4",
     R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets":
         ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "channel",
         "dynamic": false}}}, "ignore": ["lm_head"]})",
     8,
     [](std::mt19937& random, int64_t n, int64_t k, float size,
        std::vector<float>& values) -> std::vector<TestCoding::Tensor> {
       std::vector<uint32_t> words(values.size() / 8);
       std::vector<float> scales;
       for (uint32_t& word : words) word = static_cast<uint32_t>(random());
       for (int64_t row = 0; row < n; ++row) {
         scales.push_back((1 + static_cast<float>(random() % 8)) / 32 * size / std::sqrt(static_cast<float>(k)));
       }
       for (size_t i = 0; i < values.size(); ++i) {
         const int code = static_cast<int>(words[i / 8] >> i % 8 * 4 & 15);
         values[i] = static_cast<float>(code - 8) * scales[i / static_cast<size_t>(k)];
       }
       return {{"weight_packed", "I32", {n, k / 8}, bytes_of(words)},
               {"weight_scale", "F32", {n, 1}, bytes_of(scales)}};
     }},
    {"nvfp4",
     R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"targets":
         ["Linear"], "weights": {"num_bits": 4, "type": "float", "symmetric": true, "group_size": 16, "strategy":
         "tensor_group", "dynamic": false}}}, "ignore": ["lm_head"]})",
     16,
     [](std::mt19937& random, int64_t n, int64_t k, float size,
        std::vector<float>& values) -> std::vector<TestCoding::Tensor> {
       constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
       const float whole = 4 / size * std::sqrt(static_cast<float>(k));
       std::string codes, scales;
       for (size_t i = 0; i < values.size(); ++i) {
         if (i % 16 == 0) scales += static_cast<char>(0x30 + random() % 16);  // from 1/2 to 1 7/8
         if (i % 2 == 0) codes += static_cast<char>(random());
         const int code = static_cast<uint8_t>(codes.back()) >> i % 2 * 4 & 15, s = scales.back();
         const float scale = std::ldexp(1 + static_cast<float>(s & 7) / 8, (s >> 3) - 7) / whole;
         values[i] = kMagnitudes[code & 7] * (code > 7 ? -scale : scale);
       }
       return {{"weight_packed", "U8", {n, k / 2}, codes},
               {"weight_scale", "F8_E4M3", {n, k / 16}, scales},
               {"weight_global_scale", "F32", {1}, bytes_of(std::vector{whole})}};
     }},
};

// Codes and values of what lies in `dir`, in two folders. is_linear: of the names there. dropped: what names of codes
// do not begin with any more.
class CodedFolders {
 public:
  CodedFolders(const std::string& dir, const TestCoding& coding, bool (*is_linear)(const std::string& name),
               const std::string& dropped = "-") {
    std::string file = text_of(dir + "/model.safetensors");
    uint64_t size = 0;
    std::memcpy(&size, file.data(), sizeof(size));
    const auto header = nlohmann::json::parse(file.substr(sizeof(size), size));
    std::mt19937 random(7);
    File codes, values;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const std::vector<int64_t> shape = entry["shape"];
      const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      const std::string bytes = file.substr(sizeof(size) + size + begin, end - begin);
      const std::string coded_name = name.starts_with(dropped) ? name.substr(dropped.size()) : name;
      if (shape.size() != 2 || shape[1] % coding.columns_of != 0 || !name.ends_with(".weight") || !is_linear(name)) {
        codes.add(coded_name, entry["dtype"], shape, bytes);
        values.add(name, entry["dtype"], shape, bytes);
        continue;
      }
      ++coded_;
      std::vector<float> made(static_cast<size_t>(shape[0] * shape[1]));
      const std::string module = coded_name.substr(0, coded_name.size() - std::string("weight").size());
      for (const auto& tensor : coding.make(random, shape[0], shape[1], size_of(name), made)) {
        codes.add(module + tensor.suffix, tensor.dtype, tensor.shape, tensor.bytes);
      }
      values.add(name, "F32", shape, bytes_of(made));
    }
    auto config = nlohmann::json::parse(text_of(dir + "/config.json"));
    values_.write("config.json", config.dump());
    config["quantization_config"] = nlohmann::json::parse(coding.config);
    codes_.write("config.json", config.dump());
    codes_.write("model.safetensors", codes.bytes());
    values_.write("model.safetensors", values.bytes());
  }

  std::string codes() const { return codes_.path(); }
  std::string values() const { return values_.path(); }
  int coded() const { return coded_; }  // matrices

 private:
  struct File {
    void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
             const std::string& bytes) {
      header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
      data += bytes;
    }
    std::string bytes() const {
      std::string text = header.dump();
      text.append((8 - text.size() % 8) % 8, ' ');
      const uint64_t size = text.size();
      return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data;
    }
    nlohmann::json header;
    std::string data;
  };
  // A convolution's rows add little to its kernels, as training leaves it.
  static float size_of(const std::string& name) {
    return name.find("kernel_projection") == std::string::npos ? 1.0f : 0.3f;
  }
  static std::string text_of(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  TempFolder codes_, values_;
  int coded_ = 0;
};

}  // namespace volley::weights
