// Protects: quantised checkpoints that are wrong are refused by a sentence before memory is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temp_folder_for_test.h"
#include "harness.h"

namespace volley::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A copy of a folder of tests/data/quantised with another configuration or header, removed with the object. Data that
// no tensor names any more stays in the file, covered by a tensor of bytes.
class Damaged {
 public:
  explicit Damaged(const std::string& name) {
    const fs::path from = fs::path("tests/data/quantised") / name;
    config = Json::parse(std::ifstream(from / "config.json"));
    std::ifstream file(from / "model.safetensors", std::ios::binary);
    uint64_t size = 0;
    file.read(reinterpret_cast<char*>(&size), sizeof(size));
    std::string text(size, ' ');
    file.read(text.data(), static_cast<std::streamsize>(size));
    header = Json::parse(text);
    data_.assign(std::istreambuf_iterator<char>(file), {});
  }

  // One more tensor, of zeros.
  void add(const std::string& name, const std::string& dtype, const Json& shape, size_t bytes) {
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes}}};
    data_.append(bytes, '\0');
  }
  // A place that no reader looks at.
  void hide(const std::string& name) { rename(name, "model.layers.7." + name + ".input_scale"); }

  // The bytes of a tensor become zero.
  void clear(const std::string& name) {
    const Json& offsets = header.at(name)["data_offsets"];
    const size_t begin = offsets[0], end = offsets[1];
    std::fill(data_.begin() + static_cast<std::ptrdiff_t>(begin), data_.begin() + static_cast<std::ptrdiff_t>(end),
              '\0');
  }

  void set_byte(const std::string& name, size_t i, int value) {
    const size_t begin = header.at(name)["data_offsets"][0];
    data_[begin + i] = static_cast<char>(value);
  }

  void rename(const std::string& from, const std::string& to) {
    header[to] = header.at(from);
    header.erase(from);
  }

  // kv_memory: more than exists, so that errors in the files must be reported before memory is allocated.
  Error error(KvCacheType cache = KvCacheType::kAuto, int64_t kv_memory = int64_t{1} << 50) const {
    std::ofstream(folder_ / "config.json") << config;
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream file(folder_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof(size));
    file << text << data_;
    file.close();
    EngineOptions options = pocket_options();
    options.model_dir = folder_.path();
    options.skip_tokenizer = true;
    options.speculation = Speculation::kOff;
    options.draft_dir.clear();
    options.kv_cache_dtype = cache;
    options.kv_memory_bytes = kv_memory;
    const auto engine = Engine::create(options);
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? Error{} : engine.error();
  }

  Json config, header;

 private:
  TempFolder folder_;
  std::string data_;
};

const std::string kGate = "model.layers.1.mlp.gate_proj.";

TEST(QuantisedFiles, MissingScalesAreNamed) {
  Damaged fp8("fp8_block");
  fp8.rename(kGate + "weight_scale_inv", "model.layers.7.mlp.gate_proj.weight_scale_inv");
  EXPECT_THAT(fp8.error().message, HasSubstr(kGate + "weight_scale_inv"));
  Damaged nvfp4("nvfp4");
  nvfp4.rename(kGate + "weight_global_scale", "model.layers.7.mlp.gate_proj.weight_global_scale");
  EXPECT_THAT(nvfp4.error().message, HasSubstr("scale of its e4m3 scales"));
}

TEST(QuantisedFiles, WrongShapesOfScalesAreNamed) {
  Damaged fp8("fp8_block");
  Json& shape = fp8.header[kGate + "weight_scale_inv"]["shape"];
  std::swap(shape[0], shape[1]);
  EXPECT_EQ(fp8.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(fp8.error().message, HasSubstr("weight_scale_inv\" has shape [2, 6]"));
  Damaged int4("int4_group32");
  int4.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 128;
  EXPECT_THAT(int4.error().message, HasSubstr("group_size is 128"));
}

// Every tensor that the codes of a format need.
TEST(QuantisedFiles, EveryFormatNamesWhatIsMissingOrWrong) {
  const std::string layer = "model.layers.1.mlp.", expert = layer + "experts.0.gate_proj.";
  const struct {
    const char* folder;
    std::string module;
    std::vector<std::string> needed;
  } formats[] = {
      {"fp8_block", kGate, {"weight_scale_inv"}},
      {"fp8_channel", kGate, {"weight_scale"}},
      {"fp8_experts_ue8m0", expert, {"weight_scale_inv"}},
      {"fp8_partial_blocks", kGate, {"weight_scale"}},
      {"fp8_stacked", layer + "experts.gate_up_", {"proj_scale_inv"}},
      {"fp8_tensor", kGate, {"weight_scale"}},
      {"int4_group32", kGate, {"weight_scale"}},
      {"int4_channel", kGate, {"weight_scale"}},
      {"int4_zeros", expert, {"weight_scale"}},
      {"awq", kGate, {"scales", "qzeros"}},
      {"gptq", kGate, {"scales", "qzeros"}},
      {"gptq_act_order", kGate, {"scales", "qzeros"}},
      {"gptq_v2_channel", expert, {"scales", "qzeros"}},
      {"mxfp4", expert, {"weight_scale"}},
      {"mxfp4_blocks", layer + "experts.gate_up_", {"proj_scales"}},
      {"nvfp4", kGate, {"weight_scale", "weight_global_scale"}},
  };
  for (const auto& format : formats) {
    for (const std::string& tensor : format.needed) {
      SCOPED_TRACE(std::string(format.folder) + " " + tensor);
      Damaged missing(format.folder);
      missing.hide(format.module + tensor);
      EXPECT_THAT(missing.error().message, HasSubstr(format.module));
      Damaged wrong(format.folder);
      Json& shape = wrong.header[format.module + tensor]["shape"];
      if (shape.empty()) {  // two halves of the number
        wrong.header[format.module + tensor]["dtype"] = "BF16";
        shape = {2};
      } else {  // as many elements
        shape.insert(shape.begin(), 1);
        shape.insert(shape.begin(), 1);
      }
      EXPECT_THAT(wrong.error().message, HasSubstr(format.module + tensor + "\" has "));
      EXPECT_THAT(wrong.error().message, HasSubstr("shape"));
      Damaged other(format.folder);
      Json& dtype = other.header[format.module + tensor]["dtype"];
      const std::string was = dtype;
      dtype = was == "F32" || was == "I32" ? "U32" : was == "BF16" || was == "F16" ? "I16" : "I8";
      EXPECT_THAT(other.error().message, HasSubstr(format.module + tensor + "\" has dtype "));
    }
  }
}

TEST(QuantisedFiles, PlainAndCodedInOneProductAreRefused) {
  Damaged fp8("fp8_block");
  const std::string k = "model.layers.1.self_attn.k_proj.";
  const Json shape = fp8.header[k + "weight"]["shape"];
  fp8.hide(k + "weight");
  fp8.hide(k + "weight_scale_inv");
  fp8.add(k + "weight", "BF16", shape, shape[0].get<size_t>() * shape[1].get<size_t>() * 2);
  EXPECT_THAT(fp8.error().message, HasSubstr("must be quantised alike"));
}

TEST(QuantisedFiles, MixedFormatsInOneProductAreRefused) {
  Damaged int4("int4_zeros");
  const std::string expert = "model.layers.0.mlp.experts.1.gate_proj.weight_zero_point";
  int4.rename(expert, "model.layers.0.mlp.experts.9.gate_proj.weight_zero_point");
  const Error error = int4.error();
  EXPECT_EQ(error.code, ErrorCode::kUnimplemented);
  EXPECT_THAT(error.message, HasSubstr("must be quantised alike"));
}

TEST(QuantisedFiles, UnknownMethodsAndFieldsAreNamed) {
  const auto message = [](const char* name, const char* key, const Json& value) {
    Damaged folder(name);
    folder.config["quantization_config"][key] = value;
    return folder.error().message;
  };
  EXPECT_THAT(message("fp8_block", "quant_method", "bitnet"), HasSubstr("\"bitnet\", which is not built"));
  EXPECT_THAT(message("fp8_block", "fmt", "e5m2"), HasSubstr("e5m2"));
  EXPECT_THAT(message("fp8_block", "rotation", 3), HasSubstr("\"rotation\""));
  EXPECT_THAT(message("gptq", "bits", 3), HasSubstr("\"bits\" is 3"));
  EXPECT_THAT(message("gptq", "dynamic", Json{{"+:lm_head", {{"bits", 8}}}}), HasSubstr("\"dynamic\""));
  EXPECT_THAT(message("awq", "version", "gemv"), HasSubstr("gemv"));
  EXPECT_THAT(message("int4_group32", "transform_config", Json{{"R1", 1}}), HasSubstr("transform_config"));
  EXPECT_THAT(message("fp8_tensor", "quant_algo", "W4A8_AWQ"), HasSubstr("W4A8_AWQ"));
}

// Some writers give every matrix a bias, of zeros where the model has none.
TEST(QuantisedFiles, BiasesOfZerosAreNoBiases) {
  const std::string bias = kGate + "bias";
  Damaged zeros("gptq");
  const Json rows = zeros.header[kGate + "scales"]["shape"][1];
  zeros.add(bias, "F16", Json::array({rows}), rows.get<size_t>() * 2);
  EXPECT_EQ(zeros.error().code, ErrorCode::kResourceExhausted)
      << "nothing is wrong but the memory: " << zeros.error().message;
  zeros.set_byte(bias, 1, 0x80);
  EXPECT_EQ(zeros.error().code, ErrorCode::kResourceExhausted) << "of either sign";
  zeros.set_byte(bias, 2 * rows.get<size_t>() - 1, 1);
  EXPECT_EQ(zeros.error().code, ErrorCode::kUnimplemented);
  EXPECT_THAT(zeros.error().message, HasSubstr("mlp.gate_proj.bias"));
  Damaged elsewhere("gptq");
  elsewhere.add("model.layers.1.mlp.other_proj.bias", "F16", Json::array({8}), 16);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("mlp.other_proj.bias"));
}

// Order by activations is allowed where desc_act says so. It is seen in the contents, while they load.
TEST(QuantisedFiles, UnexpectedOrdersAreRefused) {
  Damaged gptq("gptq_act_order");
  gptq.config["quantization_config"]["desc_act"] = false;
  EXPECT_THAT(gptq.error(KvCacheType::kAuto, 0).message, HasSubstr("g_idx"));
}

// Scales of the cache matter to a cache of codes alone.
TEST(QuantisedFiles, WrongScalesOfTheCacheAreNamed) {
  const std::string name = "model.layers.1.self_attn.v_proj.v_scale";
  Damaged heads("fp8_tensor");
  heads.header[name]["dtype"] = "BF16";
  heads.header[name]["shape"] = {2};
  const Error error = heads.error(KvCacheType::kFp8);
  EXPECT_EQ(error.code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(error.message, HasSubstr("self_attn.v_proj.v_scale\" has a scale for each of several parts"));
  Damaged zero("fp8_tensor");
  zero.clear(name);
  EXPECT_THAT(zero.error(KvCacheType::kFp8).message, HasSubstr("v_scale\" is 0.000000, which is no scale"));
}

TEST(QuantisedFiles, ScalesOfAnotherCacheAreRefusedWhereTheyAreNeeded) {
  Damaged files("fp8_tensor");
  files.config["quantization_config"]["kv_cache_quant_algo"] = "NVFP4";
  EXPECT_THAT(files.error(KvCacheType::kFp8).message, HasSubstr("is a scale for a cache of NVFP4"));
  EXPECT_EQ(files.error().code, ErrorCode::kResourceExhausted) << files.error().message;
}

// One for keys and values, as AutoFP8 wrote it.
TEST(QuantisedFiles, AScaleForKeysAndValuesIsTaken) {
  Damaged files("fp8_tensor");
  const std::string attention = "model.layers.1.self_attn.";
  files.hide(attention + "k_proj.k_scale");
  files.rename(attention + "v_proj.v_scale", attention + "kv_scale");
  EXPECT_EQ(files.error().code, ErrorCode::kResourceExhausted) << files.error().message;
  files.clear(attention + "kv_scale");
  EXPECT_THAT(files.error(KvCacheType::kFp8).message, HasSubstr("self_attn.kv_scale\" is 0.000000"));
}

TEST(QuantisedFiles, QuantisingTwiceIsRefused) {
  EngineOptions options = pocket_options();
  options.model_dir = "tests/data/quantised/fp8_block";
  options.skip_tokenizer = true;
  options.speculation = Speculation::kOff;
  options.draft_dir.clear();
  options.quantization = Quantization::kInt4;
  EXPECT_THAT(Engine::create(options).error().message, HasSubstr("quantised already"));
  options.quantization = Quantization::kNone;
  EXPECT_EQ(make_engine(options)->info().quantization, "fp8");
}

}  // namespace
}  // namespace volley::testing
