// Protects: quantised checkpoints that are wrong are refused by a sentence before memory is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.h"

namespace volley::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A copy of a folder of tests/data/quantised with another configuration or header, removed with the object. Data that
// no tensor names any more stays where it is, behind a tensor of bytes.
class Damaged {
 public:
  explicit Damaged(const std::string& name)
      : path_(fs::temp_directory_path() / ("volley-damaged-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
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
  ~Damaged() { fs::remove_all(path_); }

  void rename(const std::string& from, const std::string& to) {
    header[to] = header.at(from);
    header.erase(from);
  }

  Error error() const {
    std::ofstream(path_ / "config.json") << config;
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream file(path_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof(size));
    file << text << data_;
    file.close();
    EngineOptions options = pocket_options();
    options.model_dir = path_.string();
    options.skip_tokenizer = true;
    options.speculation = Speculation::kOff;
    options.draft_dir.clear();
    const auto engine = Engine::create(options);
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? Error{} : engine.error();
  }

  Json config, header;

 private:
  fs::path path_;
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

// Order by activations is allowed where desc_act says so.
TEST(QuantisedFiles, UnexpectedOrdersAreRefused) {
  Damaged gptq("gptq_act_order");
  gptq.config["quantization_config"]["desc_act"] = false;
  EXPECT_THAT(gptq.error().message, HasSubstr("g_idx"));
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
