// Checks Engine::create's refusals, and that they say what to do. No weight is read.
#include <gtest/gtest.h>
#include <unistd.h>
#include <volley/engine.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <sstream>
#include <system_error>

#include "engine/start/models.h"
#include "engine/start/replica_options.h"

namespace volley {
namespace {

namespace fs = std::filesystem;

// A copy of the pocket pair whose config files a test may change.
class Startup : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("volley-startup-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    fs::copy("models/pocket", root_ / "target");
    fs::copy("models/pocket-dflash", root_ / "draft");
    options_.model_dir = (root_ / "target").string();
    options_.draft_dir = (root_ / "draft").string();
  }
  void TearDown() override { fs::remove_all(root_); }

  void replace(const std::string& file, const std::string& from, const std::string& to) {
    std::stringstream text;
    text << std::ifstream(root_ / file).rdbuf();
    std::string content = text.str();
    const size_t at = content.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    content.replace(at, from.size(), to);
    std::ofstream(root_ / file) << content;
  }

  // The error's message, or "" if the engine could be made.
  std::string refusal(ErrorCode code) {
    const auto engine = Engine::create(options_);
    if (engine.ok()) return "";
    EXPECT_EQ(error_code_name(engine.error().code), std::string(error_code_name(code))) << engine.error().message;
    return engine.error().message;
  }

  fs::path root_;
  EngineOptions options_;
};

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Startup, ThePairAsItIsStarts) {
  EXPECT_EQ(refusal(ErrorCode::kInternal), "");
}

// A user who sets sampling defaults need not care about a wrong file; all others are told.
TEST_F(Startup, DefaultsOfSamplingThatAreWrongAreLeftOut) {
  std::ofstream(root_ / "target/generation_config.json")
      << R"({"eos_token_id": [2, 0], "temperature": -1, "top_k": 9})";
  const auto models = engine::resolve_models(options_);
  ASSERT_TRUE(models.ok()) << models.error().message;
  EXPECT_EQ(models->default_sampling.temperature, 1.0f);
  EXPECT_EQ(models->default_sampling.top_k, 0);
  ASSERT_FALSE(models->warnings.empty());
  EXPECT_MENTIONS(models->warnings.front(), "generation_config.json: \"temperature\" is -1");
}

TEST_F(Startup, ConfigurationsThatDoNotFit) {
  struct Case {
    const char *file, *from, *to;
    ErrorCode code;
    std::vector<const char*> mentions;
  };
  const Case cases[] = {
      {"draft/config.json",
       "\"hidden_size\": 256",
       "\"hidden_size\": 512",
       ErrorCode::kFailedPrecondition,
       {"512", "256"}},
      {"draft/config.json", "\"vocab_size\": 2048", "\"vocab_size\": 4096", ErrorCode::kFailedPrecondition, {"4096"}},
      {"draft/config.json",
       "\"num_target_layers\": 8",
       "\"num_target_layers\": 12",
       ErrorCode::kFailedPrecondition,
       {"12"}},
      {"draft/config.json", "\"mask_token_id\": 3,", "", ErrorCode::kInvalidArgument, {"mask_token_id"}},
      {"draft/config.json", "      1,\n", "      1,\n      3,\n", ErrorCode::kFailedPrecondition, {"fc.weight"}},
      {"target/config.json", "Qwen3ForCausalLM", "GPT2LMHeadModel", ErrorCode::kUnimplemented, {"GPT2LMHeadModel"}},
  };
  for (const Case& wrong : cases) {
    SetUp();
    replace(wrong.file, wrong.from, wrong.to);
    const std::string message = refusal(wrong.code);
    for (const char* part : wrong.mentions) EXPECT_MENTIONS(message, part);
  }
}

TEST_F(Startup, BlockSizes) {
  options_.block_size = 1;
  EXPECT_MENTIONS(refusal(ErrorCode::kInvalidArgument), "2");
  options_.block_size = 24;  // more than it was trained for gives a warning
  const auto engine = Engine::create(options_);
  ASSERT_TRUE(engine.ok());
  ASSERT_EQ((*engine)->info().warnings.size(), 1u);
  EXPECT_EQ((*engine)->info().block_size, 24);
}

TEST_F(Startup, SpeculationWithoutADrafter) {
  options_.draft_dir.clear();
  EXPECT_MENTIONS(refusal(ErrorCode::kInvalidArgument), "--draft");
  options_.speculation = Speculation::kOff;
  EXPECT_EQ(refusal(ErrorCode::kInternal), "");
}

TEST_F(Startup, TwoDraftersAreChosenBetween) {
  const std::string alone = [&] {
    const auto engine = Engine::create(options_);
    return engine.ok() ? std::to_string((*engine)->info().kv_bytes_per_token) : engine.error().message;
  }();
  options_.second_draft_dir = options_.draft_dir;
  options_.verify = {VerifyPolicy::Kind::kFull};
  EXPECT_MENTIONS(refusal(ErrorCode::kUnimplemented), "only --verify auto");
  options_.verify = {};
  options_.block_size = 8;
  EXPECT_MENTIONS(refusal(ErrorCode::kUnimplemented), "--block-size");
  options_.block_size = 0;
  const auto engine = Engine::create(options_);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  EXPECT_EQ((*engine)->info().drafters, 2);
  EXPECT_GT((*engine)->info().kv_bytes_per_token, std::stoll(alone)) << "each has layers of its own";
  EXPECT_EQ((*engine)->stats().verify.drafters.size(), 2u);
  EXPECT_TRUE((*engine)->set_verify({VerifyPolicy::Kind::kFixed, 0}).ok());
  const Status full = (*engine)->set_verify({VerifyPolicy::Kind::kFull});
  ASSERT_FALSE(full.ok());
  EXPECT_MENTIONS(full.error().message, "two drafters");
}

// The drafter follows the target by default.
TEST_F(Startup, QuantisedModelsOnTheCpu) {
  using Draft = DraftQuantization;
  options_.device = "cpu";
  const EngineOptions plain = options_;
  const auto check = [&](Quantization target, Draft draft, const std::string& target_is, const std::string& draft_is) {
    options_.quantization = target;
    options_.draft_quantization = draft;
    const auto engine = Engine::create(options_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    EXPECT_EQ((*engine)->info().quantization, target_is);
    EXPECT_EQ((*engine)->info().draft_quantization, draft_is);
  };
  check(Quantization::kNone, Draft::kAuto, "none", "none");
  check(Quantization::kNone, Draft::kFp8, "none", "fp8");
  check(Quantization::kFp8, Draft::kAuto, "fp8", "fp8");
  check(Quantization::kInt4, Draft::kAuto, "int4", "int4");
  check(Quantization::kInt4, Draft::kNone, "int4", "none");
  options_.speculation = Speculation::kOff;
  check(Quantization::kInt4, Draft::kFp8, "int4", "");
  options_ = plain;
  replace("target/config.json", "\"use_cache\"",
          R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, "use_cache")");
  options_.dummy_weights = 1;
  check(Quantization::kNone, Draft::kAuto, "fp8", "fp8");
  options_.dtype = ComputeType::kFloat32;
  check(Quantization::kNone, Draft::kAuto, "fp8", "none");
}

// Qwen3-VL's row of a picture brings four vectors of 2,560 elements.
TEST_F(Startup, PicturesOfAStepFitIntoOneCall) {
  std::stringstream file;
  file << std::ifstream("tests/data/published/qwen3_vl_4b_instruct.json").rdbuf();
  const std::string text = file.str();
  const size_t begin = text.find('{', text.find("\"config\"")), end = text.rfind('}');
  fs::create_directories(root_ / "seeing");
  std::ofstream(root_ / "seeing/config.json") << text.substr(begin, end - begin);
  options_.model_dir = (root_ / "seeing").string();
  options_.draft_dir.clear();
  options_.speculation = Speculation::kOff;
  options_.dummy_weights = 1;
  options_.skip_tokenizer = true;
  options_.max_num_batched_tokens = 30'000;
  options_.restart_on_device_error = true;
  EXPECT_MENTIONS(refusal(ErrorCode::kInvalidArgument), "pictures allow at most 24");
}

TEST_F(Startup, MemoryThatCannotHoldOneRequest) {
  options_.kv_pages = 4;
  EXPECT_MENTIONS(refusal(ErrorCode::kResourceExhausted), "--max-model-len");
}

TEST_F(Startup, OptionsOutOfRange) {
  const EngineOptions good = options_;
  const auto with = [&](auto&& change) {
    options_ = good;
    change(options_);
    return refusal(ErrorCode::kInvalidArgument);
  };
  EXPECT_MENTIONS(with([](auto& o) { o.page_size = 10; }), "--page-size");
  EXPECT_MENTIONS(with([](auto& o) { o.threads = -1; }), "--threads");
  EXPECT_MENTIONS(with([](auto& o) { o.max_model_len = 4096; }), "2048");
  EXPECT_MENTIONS(with([](auto& o) { o.threads = 100'000; }), "--threads");
  EXPECT_MENTIONS(with([](auto& o) { o.max_num_seqs = 2'000'000'000; }), "--max-num-seqs");
  EXPECT_MENTIONS(with([](auto& o) { o.max_num_batched_tokens = 2'147'483'647; }), "--max-num-batched-tokens");
  EXPECT_MENTIONS(with([](auto& o) { o.block_size = 2'000'000'000; }), "--block-size");
  EXPECT_MENTIONS(with([](auto& o) { o.max_queue = 0; }), "--max-queue");
  EXPECT_MENTIONS(with([](auto& o) { o.max_num_seqs = 64, o.max_num_batched_tokens = 32; }),
                  "--max-num-batched-tokens");
  EXPECT_MENTIONS(with([](auto& o) { o.verify = {VerifyPolicy::Kind::kFixed, 16}; }), "use 0 to 15, auto or full");
  EXPECT_MENTIONS(with([](auto& o) { o.verify = {VerifyPolicy::Kind::kFixed, -1}; }), "--verify is -1");
  EXPECT_MENTIONS(with([](auto& o) {
                    o.speculation = Speculation::kOff;
                    o.verify = {VerifyPolicy::Kind::kFixed, 3};
                  }),
                  "nothing to verify");
  EXPECT_MENTIONS(with([](auto& o) { o.device = "tpu"; }), "tpu");
  EXPECT_MENTIONS(with([](auto& o) { o.attention_backend = "flash"; }), "use auto, wgmma, portable or plain");
  EXPECT_MENTIONS(with([](auto& o) { o.draft_attention_backend = "flash"; }), "flash");
  options_ = good;
}

// With a GPU and a CUDA program, a user must learn why the CPU computes. A program without CUDA explains nothing.
TEST(AutomaticDevice, SaysWhyItIsNotTheGpu) {
  const auto no_driver = engine::automatic_device(Error{ErrorCode::kUnavailable, "No GPU can be used."}, 1000);
  EXPECT_EQ(no_driver.kind, DeviceKind::kCpu);
  EXPECT_EQ(no_driver.available_bytes, 1000);
  EXPECT_EQ(no_driver.warning, "No GPU can be used. Running on the CPU.");
  const auto not_built = engine::automatic_device(unimplemented("This program was built without CUDA."), 1000);
  EXPECT_EQ(not_built.kind, DeviceKind::kCpu);
  EXPECT_EQ(not_built.warning, "");
  const auto gpu = engine::automatic_device(GpuFacts{"a GPU", 5000, {90, 132, 232448}}, 1000);
  EXPECT_EQ(gpu.kind, DeviceKind::kCuda);
  EXPECT_EQ(gpu.available_bytes, 5000);
  EXPECT_EQ(gpu.gpu.compute_capability, 90);
  EXPECT_EQ(gpu.warning, "");
}

// This holds with and without CUDA, and with and without a GPU.
TEST_F(Startup, AGpuThatIsNotThere) {
  options_.device = "cuda:99";
  const auto engine = Engine::create(options_);
  ASSERT_FALSE(engine.ok());
  EXPECT_TRUE(engine.error().code == ErrorCode::kUnimplemented || engine.error().code == ErrorCode::kUnavailable);
  EXPECT_MENTIONS(engine.error().message, "--device cpu");
}

TEST_F(Startup, FewerThreadsThanRanksAreSaid) {
  options_.device = "cpu";
  options_.speculation = Speculation::kOff;
  options_.max_num_seqs = 1;
  options_.kv_pages = 200;
  const auto warnings = [&](int threads, int ranks, int replicas) {
    options_.threads = threads;
    options_.tensor_parallel_size = ranks;
    options_.data_parallel_size = replicas;
    const auto engine = Engine::create(options_);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    return engine.ok() ? (*engine)->info().warnings : std::vector<std::string>();
  };
  const auto few = warnings(3, 2, 2);
  ASSERT_EQ(few.size(), 1u);
  EXPECT_MENTIONS(few[0], "--threads is 3");
  EXPECT_MENTIONS(few[0], "4 ranks");
  EXPECT_EQ(warnings(1, 2, 1).size(), 1u);
  EXPECT_EQ(warnings(1, 1, 2).size(), 1u);
  EXPECT_TRUE(warnings(4, 2, 2).empty());
  EXPECT_TRUE(warnings(1, 1, 1).empty());
  options_.threads = 1;
  options_.tensor_parallel_size = options_.data_parallel_size = 2;
  EXPECT_FALSE(engine::too_few_threads(options_, DeviceKind::kCuda)) << "a GPU each";
}

// A process that computes for an engine plans with the engine's memory, whatever others take meanwhile.
TEST_F(Startup, APlanCanBeMadeOfTheMemoryThatAnotherProcessHad) {
  const auto plan = [&](int64_t bytes) { return engine::resolve_models(options_, 0, bytes); };
  const int64_t weights = engine::resolve_models(options_)->weights.total();
  ASSERT_TRUE(plan(3 * weights).ok());
  EXPECT_GT(plan(4 * weights)->memory.kv_bytes(), plan(3 * weights)->memory.kv_bytes());
  EXPECT_FALSE(plan(weights).ok());
}

// Attention's output then has the cache's type, and meets a matrix in float32.
TEST_F(Startup, ABfloat16CacheWithFloat32Weights) {
  options_.model_dir = "tests/data/targets/narrow_fp32";
  options_.speculation = Speculation::kOff;
  options_.kv_cache_dtype = KvCacheType::kBFloat16;
  const auto models = engine::resolve_models(options_);
  ASSERT_TRUE(models.ok()) << models.error().message;
  EXPECT_EQ(models->target_numerics.storage, DType::kF32);
  EXPECT_EQ(models->kv_dtype, DType::kBF16);
}

TEST_F(Startup, ACacheOfCodesTakesTheScalesOfTheFile) {
  options_.model_dir = "tests/data/quantised/fp8_tensor";
  options_.speculation = Speculation::kOff;
  const auto plain = engine::resolve_models(options_);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(plain->kv.layers[1].k_scale, 1);
  options_.kv_cache_dtype = KvCacheType::kFp8;
  const auto models = engine::resolve_models(options_);
  ASSERT_TRUE(models.ok()) << models.error().message;
  EXPECT_EQ(models->kv_dtype, DType::kF8E4M3);
  EXPECT_EQ(2 * models->kv.groups[0].bytes, plain->kv.groups[0].bytes);
  ASSERT_EQ(models->kv.layers.size(), 2u);
  for (const size_t layer : {0, 1}) {
    EXPECT_FLOAT_EQ(models->kv.layers[layer].k_scale, 0.02f * static_cast<float>(layer + 1));
    EXPECT_FLOAT_EQ(models->kv.layers[layer].v_scale, 0.03f * static_cast<float>(layer + 1));
  }
}

TEST_F(Startup, RecurrentLayersBringSnapshotsOfTheirStates) {
  options_.model_dir = "tests/data/targets/hybrid_tied";
  options_.speculation = Speculation::kOff;
  options_.state_snapshot_tokens = 100;
  options_.page_size = 16;
  const auto models = engine::resolve_models(options_);
  ASSERT_TRUE(models.ok()) << models.error().message;
  EXPECT_TRUE(models->shares_prefixes());
  EXPECT_GT(models->memory.state_bytes, 0);
  EXPECT_EQ(models->memory.snapshots, 2 * models->max_num_seqs);
  EXPECT_EQ(models->memory.snapshot_bytes, 2 * models->memory.state_bytes);
  EXPECT_EQ(models->snapshot_tokens, 112) << "whole pages";
  options_.state_snapshot_tokens = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(engine::resolve_models(options_)->snapshot_tokens % 16, 0);
  options_.state_snapshot_memory_bytes = 3 * models->kv.slot_bytes() + 1;
  EXPECT_EQ(engine::resolve_models(options_)->memory.snapshots, 3);
  options_.state_snapshot_memory_bytes = models->kv.slot_bytes() - 1;
  const auto none = engine::resolve_models(options_);
  ASSERT_FALSE(none.ok());
  EXPECT_MENTIONS(none.error().message, "--state-snapshot-memory-mb");
  options_.state_snapshot_memory_bytes = int64_t{1} << 50;
  const auto too_many = engine::resolve_models(options_);
  ASSERT_FALSE(too_many.ok());
  EXPECT_MENTIONS(too_many.error().message, "lower it");
  options_.state_snapshot_memory_bytes = 0;
  options_.prefix_cache = false;
  const auto off = engine::resolve_models(options_);
  ASSERT_TRUE(off.ok()) << off.error().message;
  EXPECT_EQ(off->memory.snapshot_bytes, 0) << "it was not asked for";
}

TEST_F(Startup, AttentionBackendsAreAGpus) {
  options_.device = "cpu";
  options_.attention_backend = "portable";
  EXPECT_MENTIONS(refusal(ErrorCode::kUnimplemented), "portable");
}

TEST_F(Startup, VocabularyBeyondTheSamplingRule) {
  replace("target/config.json", "\"vocab_size\": 2048", "\"vocab_size\": 600000");
  options_.speculation = Speculation::kOff;
  EXPECT_MENTIONS(refusal(ErrorCode::kUnimplemented), "600000");
}

TEST_F(Startup, MissingFolderFileOrTensor) {
  options_.model_dir = (root_ / "nowhere").string();
  EXPECT_MENTIONS(refusal(ErrorCode::kNotFound), "nowhere");
  options_.model_dir = (root_ / "target").string();
  fs::remove(root_ / "draft/model.safetensors");
  EXPECT_MENTIONS(refusal(ErrorCode::kNotFound), "model.safetensors");
}

// Such a drafter would run, and no draft would be accepted.
TEST_F(Startup, DrafterWeightsThatAreNoNumbers) {
  std::fstream file(root_ / "draft/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-2, std::ios::end);
  file.write("\xc0\x7f", 2);  // NaN in bfloat16
  file.close();
  EXPECT_MENTIONS(refusal(ErrorCode::kDataLoss), "NaN");
}

// The system refuses a thread at each place of the loading.
TEST_F(Startup, WithoutThreadsThereIsAnError) {
  const auto meanwhile = [&](const std::function<void()>& refuse) {
    const auto engine = Engine::create(options_, [&](std::string_view, double) { refuse(); });
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? Error{} : engine.error();
  };
  const Error threads =
      meanwhile([] { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); });
  EXPECT_EQ(threads.code, ErrorCode::kResourceExhausted);
  EXPECT_MENTIONS(threads.message, "no more threads");
  const Error other = meanwhile([] { throw std::system_error(std::make_error_code(std::errc::io_error)); });
  EXPECT_EQ(other.code, ErrorCode::kInternal);
}

TEST_F(Startup, TruncatedWeights) {
  fs::resize_file(root_ / "target/model.safetensors", 1'000'000);
  EXPECT_MENTIONS(refusal(ErrorCode::kDataLoss), "model.safetensors");
}

}  // namespace
}  // namespace volley
