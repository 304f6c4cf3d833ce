// Models that see: tiny random ones with pictures against transformers (tests/data/README.md), and invariant 1: nothing
// but the prompt shows in the answer.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/temp_folder_for_test.h"
#include "fixtures.h"
#include "model_runner.h"

namespace volley::testing {
namespace {

constexpr int32_t kTalks = 5, kAnswer = 64, kToken = 7;
// The error of logits and of the tower's vectors: a tower adds roundings of its own before the decoder's.
constexpr double kSeenTolerance = 1e-5;

std::string folder_of(const std::string& name) {
  return "tests/data/seen/" + name;
}

// A prompt with pictures, and what transformers makes of it.
struct Talk {
  Talk(const std::string& name, int32_t index)
      : expected(folder_of(name) + "/expected"), suffix("." + std::to_string(index)) {
    const std::vector<TokenId> sizes = expected.ids("sizes" + suffix, 2);
    request.prompt = expected.ids("prompt_ids" + suffix, sizes[0]);
    const auto places = expected.matrix("pictures" + suffix, sizes[1], 3);
    int64_t bytes = 0, from = 0;
    for (const auto& place : places) bytes += 3 * static_cast<int64_t>(place[1] * place[2]);
    const std::vector<float> rgb = expected.vector("rgb" + suffix, bytes);
    for (const auto& place : places) {
      PromptPicture& picture = request.pictures.emplace_back();
      picture = {static_cast<int32_t>(place[0]), static_cast<int32_t>(place[1]), static_cast<int32_t>(place[2]), {}};
      const int64_t n = int64_t{3} * picture.width * picture.height;
      picture.rgb = std::make_shared<std::vector<uint8_t>>(rgb.begin() + from, rgb.begin() + from + n);
      from += n;
    }
    request.max_tokens = kAnswer;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.repetition_penalty = 1.5f;
    for (TokenId token = kToken; token < kToken + 4; ++token) request.sampling.logit_bias.push_back({token, -100.0f});
  }
  std::vector<TokenId> answer() const { return expected.ids("greedy_ids" + suffix, kAnswer); }

  Fixture expected;
  std::string suffix;
  GenerateRequest request;
};

EngineOptions options_for(const std::string& model) {
  EngineOptions options = pocket_options();
  options.model_dir = model;
  options.draft_dir = "";
  options.speculation = Speculation::kOff;
  options.skip_tokenizer = true;
  options.max_model_len = 160;
  options.max_num_seqs = 1;
  options.threads = 1;
  options.kv_pages = 4096;
  return options;
}

class SeenParity : public ::testing::TestWithParam<const char*> {};

TEST_P(SeenParity, VectorsAndLogitsAreThoseOfTransformers) {
  ModelRunner model(folder_of(GetParam()), "", ComputeType::kFloat32, 96);
  const model::Decoder& spec = model.spec();
  ASSERT_TRUE(spec.tower.has_value());
  const int32_t side = spec.tower->rules.token_side();
  for (int32_t index = 0; index < kTalks; ++index) {
    const Talk talk(GetParam(), index);
    const auto length = static_cast<int32_t>(talk.request.prompt.size());
    ModelRunner::Brought brought;
    for (const auto& row : talk.expected.matrix("axes" + talk.suffix, length, 3))
      brought.axes.push_back(
          {static_cast<int32_t>(row[0]), static_cast<int32_t>(row[1]), static_cast<int32_t>(row[2])});
    brought.vectors.resize(static_cast<size_t>(spec.tower->kinds()));
    for (const PromptPicture& picture : talk.request.pictures) {
      const auto kinds = model.see({picture.width, picture.height, *picture.rgb});
      EXPECT_EQ(model.see({picture.width, picture.height, *picture.rgb}, 3), kinds) << "cut into pieces";
      for (size_t kind = 0; kind < kinds.size(); ++kind) {
        brought.vectors[kind].insert(brought.vectors[kind].end(), kinds[kind].begin(), kinds[kind].end());
      }
      const int32_t tokens = picture.width / side * (picture.height / side);
      for (int32_t i = 0; i < tokens; ++i) brought.places.push_back(picture.begin + i);
    }
    std::vector<std::vector<float>> all;
    for (const auto& kind : brought.vectors) all.insert(all.end(), kind.begin(), kind.end());
    const auto vectors = talk.expected.matrix("vectors" + talk.suffix, std::ssize(all), spec.hidden);
    const auto reference = talk.expected.matrix("logits" + talk.suffix, length, spec.vocab);
    const auto logits = model.logits(talk.request.prompt, length, brought);
    std::printf("%s, talk %d: relative error of vectors %.1e, of logits %.1e\n", GetParam(), index,
                relative_error(all, vectors), relative_error(logits, reference));
    EXPECT_LT(relative_error(all, vectors), kSeenTolerance);
    EXPECT_LT(relative_error(logits, reference), kSeenTolerance);
    EXPECT_EQ(model.logits(talk.request.prompt, 7, brought), logits) << "chunks that cut through pictures";
    for (int without = 0; index == 1 && without < 3; ++without) {  // each part of what is brought shows
      ModelRunner::Brought less = brought;
      if (without == 0) less.axes.clear();
      if (without == 1) less.places.clear();
      if (without == 2 && less.vectors.size() < 3) continue;
      if (without == 2) std::swap(less.vectors[1], less.vectors[2]);
      EXPECT_GT(relative_error(model.logits(talk.request.prompt, length, less), reference), 1e-3) << without;
    }
  }
}

// The engine makes vectors, positions and keys itself. Later turns find pictures and prefixes of earlier ones.
TEST_P(SeenParity, AnswersAreThoseOfTransformers) {
  EngineOptions options = options_for(folder_of(GetParam()));
  options.dtype = ComputeType::kFloat32;
  const auto engine = make_engine(options);
  ASSERT_TRUE(engine->info().pictures.has_value());
  EXPECT_EQ(engine->info().pictures->token, kToken);
  int64_t pictures = 0;
  for (int32_t index = 0; index < kTalks; ++index) {
    const Talk talk(GetParam(), index);
    const Output answer = run_all(*engine, {talk.request}, 1)[0];
    ASSERT_FALSE(answer.finish.error) << answer.finish.error->message;
    EXPECT_EQ(answer.tokens, talk.answer()) << index;
    pictures += std::ssize(talk.request.pictures);
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.pictures + stats.picture_hits, pictures);
  EXPECT_EQ(stats.picture_hits, 1) << "the first picture of the last talk";
  EXPECT_GT(stats.vision_s, 0);
}

// This program is the other process, too: its last word is a descriptor.
TEST(SeenProcess, DISABLED_Computes) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string word;
  for (std::string next; std::getline(file, next, '\0');) word = next;
  std::_Exit(Engine::compute(std::stoi(word)).ok() ? 0 : 1);
}

// The first rank has the tower, and its vectors go to all; each replica has one; a device process sends them back.
TEST(SeenRanks, AnswersAreThoseOfTransformers) {
  for (int kind = 0; kind < 3; ++kind) {
    EngineOptions options = options_for(folder_of("qwen3_vl"));
    options.dtype = ComputeType::kFloat32;
    options.threads = 2;
    options.max_num_seqs = 2;
    if (kind == 0) options.tensor_parallel_size = 2;
    if (kind == 1) options.data_parallel_size = 2;
    options.restart_on_device_error = kind == 2;
    options.device_command = {"/proc/self/exe", "--gtest_brief=1", "--gtest_filter=SeenProcess.*",
                              "--gtest_also_run_disabled_tests"};
    if (!has_room_for(kind < 2 ? 2 : 1)) continue;
    if (kind == 2 && kTestDevice != "cpu") continue;  // the process gives back what it has of the GPU
    const auto engine = make_engine(options);
    std::vector<GenerateRequest> requests;
    std::vector<std::vector<TokenId>> answers;
    for (const int32_t index : {1, 2, 1}) {
      const Talk talk("qwen3_vl", index);
      requests.push_back(talk.request);
      answers.push_back(talk.answer());
      answers.back().resize(requests.back().max_tokens = 10);  // ranks that share cores are slow
    }
    const auto outputs = run_all(*engine, requests, 3);
    for (size_t i = 0; i < outputs.size(); ++i) {
      ASSERT_FALSE(outputs[i].finish.error) << outputs[i].finish.error->message;
      EXPECT_EQ(outputs[i].tokens, answers[i]) << kind << ", request " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SeenParity, ::testing::Values("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
                         [](const auto& info) { return std::string(info.param); });

// The engine's configuration, and how often its drafts are right.
struct Row {
  const char* name;
  int block_size;  // 0: no speculation
  float accuracy;
  int concurrency, prefill_chunk, page_size;
  bool prefix_cache, tight;
};
constexpr Row kRows[] = {
    {"chunks of 5, 8 at once", 0, 0, 8, 5, 16, true, false},
    {"block 16, often right", 16, 0.95f, 8, 16, 16, true, false},
    {"block 8, chunks of 7, tight", 8, 0.8f, 8, 7, 16, true, true},
    {"block 4, alone, no cache", 4, 0.9f, 1, 512, 32, false, false},
    {"block 8, chunks of 3, tight, no cache", 8, 0.9f, 6, 3, 16, false, true},
    {"block 6, chunks of 1", 6, 0.9f, 8, 1, 16, true, false},  // cut everywhere; from here on in full matrices
    {"block 16, chunks of 2, tight", 16, 0.9f, 12, 2, 32, true, true},
    {"chunks of 11, tight", 0, 0, 16, 11, 16, true, true},
};
constexpr size_t kRowsOfSuite = 5;

// Each row of kRows against plain decoding of one request at a time; a row with a prefix cache runs twice.
void expect_invisible(const std::string& model, const std::vector<GenerateRequest>& requests,
                      const std::vector<Output>& plain) {
  const TempFolder drafter;
  std::string answers;
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_FALSE(plain[i].finish.error) << plain[i].finish.error->message;
    answers += nlohmann::json{{"seed", *requests[i].sampling.seed}, {"token_ids", plain[i].tokens}}.dump() + "\n";
  }
  drafter.write("answers.jsonl", answers);
  int64_t preemptions = 0, accepted = 0, cached = 0;
  for (const Row& row : std::span(kRows).first(full_matrix() ? std::size(kRows) : kRowsOfSuite)) {
    const nlohmann::json config = {
        {"architectures", {"ReplayDraftModel"}}, {"block_size", 16}, {"accuracy", row.accuracy}, {"salt", 7}};
    drafter.write("config.json", config.dump());
    EngineOptions options = options_of_row(
        [&] {
          struct Fields : Row {
            int threads = 2;
            bool graphs = true, tight_pool = false;
          } fields{row};
          fields.tight_pool = row.tight;
          return fields;
        }(),
        160);
    options.model_dir = model;
    options.skip_tokenizer = true;
    options.draft_dir = row.block_size > 0 ? drafter.path() : "";
    if (!row.tight) options.kv_pages = 4096;
    const auto engine = make_engine(options);
    for (int run = 0; run < (row.prefix_cache ? 2 : 1); ++run) {
      const auto outputs = run_all(*engine, requests, row.concurrency);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(outputs[i].tokens, plain[i].tokens) << row.name << ", run " << run << ", request " << i;
      }
    }
    const EngineStats stats = engine->stats();
    preemptions += stats.preemptions;
    accepted += stats.accepted_tokens;
    cached += stats.cached_tokens;
  }
  std::printf("%lld preemptions, %lld drafted tokens accepted, %lld tokens cached\n",
              static_cast<long long>(preemptions), static_cast<long long>(accepted), static_cast<long long>(cached));
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(cached, 0);
}

GenerateRequest random_prompt(std::mt19937& random, int32_t vocab, size_t i) {
  GenerateRequest request;
  const size_t length = 50 + random() % 40;
  for (size_t j = 0; j < length; ++j) request.prompt.push_back(static_cast<TokenId>(random() % vocab));
  request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
  request.sampling.seed = 700 + i;
  request.max_tokens = 40;
  request.ignore_eos = true;
  return request;
}

class SeenInvariance : public ::testing::TestWithParam<std::string> {};

// Talks at two temperatures, in turns of three: random pictures in text; then a further turn, with one more picture;
// then that turn with text in its last picture's place.
TEST_P(SeenInvariance, PicturesAreComputedTheSameHoweverTheyAreCut) {
  const std::string model = folder_of(GetParam());
  constexpr int32_t kVocab = 77, kSide = 8, kText = 11;
  std::mt19937 random(3);
  const auto add_picture = [&](GenerateRequest& request, size_t begin, int32_t rows, int32_t columns) {
    std::vector<uint8_t> rgb(static_cast<size_t>(3 * rows * columns * kSide * kSide));
    for (uint8_t& byte : rgb) byte = static_cast<uint8_t>(random());
    request.prompt.insert(request.prompt.begin() + static_cast<ptrdiff_t>(begin), static_cast<size_t>(rows * columns),
                          kToken);
    request.pictures.push_back({static_cast<int32_t>(begin), columns * kSide, rows * kSide,
                                std::make_shared<std::vector<uint8_t>>(std::move(rgb))});
  };
  const auto add_text = [&](GenerateRequest& request, size_t tokens) {
    for (size_t i = 0; i < tokens; ++i)
      request.prompt.push_back(kText + static_cast<TokenId>(random() % (kVocab - kText)));
  };
  std::vector<GenerateRequest> requests;
  GenerateRequest talk;
  for (int i = 0; i < (full_matrix() ? 100 : 6); ++i) {
    if (i % 3 == 0) {
      talk = {};
      add_text(talk, 40);
      size_t begin = random() % 9;
      for (const auto& [rows, columns] : {std::pair{3, 4}, {1, 7}, {5, 3}}) {
        add_picture(talk, begin, rows, columns);
        begin += static_cast<size_t>(rows * columns) + 1;
      }
    } else if (i % 3 == 1) {
      add_text(talk, 3 + random() % 9);
      add_picture(talk, talk.prompt.size(), 2 + static_cast<int32_t>(random() % 2), 5);
      add_text(talk, 4);
    } else {
      std::replace(talk.prompt.begin() + talk.pictures.back().begin, talk.prompt.end(), kToken, kText);
      talk.pictures.pop_back();
    }
    for (const float temperature : {0.0f, 0.8f}) {
      GenerateRequest& request = requests.emplace_back(talk);
      request.sampling.temperature = temperature;
      request.sampling.seed = 700 + requests.size();
      request.max_tokens = 30;
      request.ignore_eos = true;
    }
  }
  EngineOptions options = options_for(model);
  options.prefix_cache = false;
  const auto plain = run_all(*make_engine(options), requests, 1);
  EXPECT_NE(plain[0].tokens, plain[2].tokens);
  std::vector<GenerateRequest> others = {requests[0], requests[1]};
  std::vector<uint8_t> changed = *others[0].pictures[1].rgb;
  for (uint8_t& byte : changed) byte ^= 0x80;
  for (GenerateRequest& other : others) other.pictures[1].rgb = std::make_shared<std::vector<uint8_t>>(changed);
  const auto seen = run_all(*make_engine(options), others, 1);
  EXPECT_TRUE(seen[0].tokens != plain[0].tokens || seen[1].tokens != plain[1].tokens) << "the pictures show";
  expect_invisible(model, requests, plain);
}

INSTANTIATE_TEST_SUITE_P(Families, SeenInvariance,
                         ::testing::ValuesIn(full_matrix() ? std::vector<std::string>{"qwen3_vl", "qwen3_vl_moe",
                                                                                      "qwen3_5", "qwen3_5_moe"}
                                                           : std::vector<std::string>{"qwen3_vl"}),
                         [](const auto& info) { return info.param; });

// Vectors that are rows of the embedding, and positions that are indices, are text: also where layers keep states.
TEST(SeenText, TextBroughtAsVectorsIsText) {
  const std::string model = "tests/data/targets/hybrid_wide";
  constexpr int32_t vocab = 77, kHidden = 48;
  const auto embeddings = Fixture(model).matrix("model.embed_tokens.weight", vocab, kHidden);
  std::mt19937 random(4);
  std::vector<GenerateRequest> text, brought;
  for (size_t i = 0; i < 8; ++i) {
    text.push_back(random_prompt(random, vocab, i));
    GenerateRequest request = text.back();
    request.prompt_keys = request.prompt;
    for (int32_t begin = static_cast<int32_t>(i); begin + 12 < std::ssize(request.prompt); begin += 17) {
      PromptSpan& span = request.prompt_spans.emplace_back();
      span.begin = begin;
      span.end = begin + 9;
      std::vector<float> vectors;
      for (int32_t j = span.begin; j < span.end; ++j) {
        const std::vector<float>& row = embeddings[request.prompt[j]];
        vectors.insert(vectors.end(), row.begin(), row.end());
        if (i % 2 == 0) span.positions.push_back({j, j, j});
        request.prompt[j] = 0;  // its id says nothing
      }
      span.vectors = std::make_shared<const std::vector<float>>(std::move(vectors));
    }
    brought.push_back(std::move(request));
  }
  const auto plain = run_all(*make_engine(options_for(model)), text, 1);
  expect_invisible(model, brought, plain);
}

TEST(SeenRequests, AreRefusedWhereTheModelKnowsNoAxes) {
  const auto engine = make_engine(options_for("tests/data/targets/plain"));
  GenerateRequest request;
  request.prompt = request.prompt_keys = {1, 2};
  request.prompt_spans = {{.begin = 0, .end = 1, .vectors = {}, .positions = {{0, 0, 0}}}};
  const auto refused = run_all(*engine, {request}, 1)[0];
  ASSERT_TRUE(refused.finish.error);
  EXPECT_EQ(
      refused.finish.error->message,
      "The prompt span of tokens 0 to 1 has positions in time, height and width, which this model does not know.");
}

TEST(SeenRequests, ArePictureByPictureWithinTheRules) {
  const auto engine = make_engine(options_for(folder_of("qwen3_5")));
  const auto refusal = [&](const std::function<void(GenerateRequest&)>& change) {
    GenerateRequest request = Talk("qwen3_5", 0).request;
    change(request);
    const Output refused = run_all(*engine, {request}, 1)[0];
    return refused.finish.error ? refused.finish.error->message : "accepted";
  };
  EXPECT_EQ(refusal([](auto& r) { r.pictures[0].width = 20; }),
            "A picture of 20 x 16 pixels does not fit this model: both sides must be multiples of 8.");
  EXPECT_EQ(refusal([](auto& r) { r.pictures[0].rgb = nullptr; }),
            "A picture of 24 x 16 pixels needs three bytes for each.");
  EXPECT_EQ(refusal([](auto& r) { r.pictures[0].height = r.pictures[0].width = 1600; }),
            "A picture of 1600 x 1600 pixels is too large: it may have at most 4096.");
  EXPECT_EQ(refusal([](auto& r) { r.pictures[0].begin = 2; }),
            "A picture of 6 tokens begins at token 2 of the prompt: all of these must be token id 7.");
  EXPECT_EQ(refusal([](auto& r) { r.pictures.push_back(r.pictures[0]); }),
            "A picture of 6 tokens begins at token 1 of the prompt, where it overlaps another or the prompt's end.");
  EXPECT_EQ(refusal([](auto& r) { r.prompt_keys = r.prompt; }),
            "A prompt with pictures has no prompt_keys and no prompt_spans: the engine makes them.");
  EXPECT_EQ(refusal([](auto&) {}), "accepted");
}

// A request that ends while its picture is computed leaves the others alone.
TEST(SeenRequests, MayEndBeforeTheyAreSeen) {
  EngineOptions options = options_for(folder_of("qwen3_5"));
  options.dtype = ComputeType::kFloat32;
  options.target_step_ms = 1;
  const auto engine = make_engine(options);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(Talk("qwen3_5", 1 + i % 2).request);
  requests[1].timeout_s = requests[3].timeout_s = 1e-6;
  const auto outputs = run_all(*engine, requests, 4);
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].terminal_events, 1);
    if (i % 2 == 0) EXPECT_EQ(outputs[i].tokens, Talk("qwen3_5", 1).answer());
    if (i % 2 == 1) EXPECT_EQ(outputs[i].finish.reason, FinishReason::kTimeout);
  }
}

}  // namespace
}  // namespace volley::testing
