// Protects: an MTP head drafts, token for token, what a plain reference computes in float64
// (tests/make/make_mtp_fixtures.py), however known tokens fall into passes, and whatever rejected rows left behind; and
// a head that is not built is refused by the field that says so.
#include "decode/mtp/mtp.h"

#include <numeric>

#include "decode/proposers.h"
#include "families/config_for_test.h"
#include "families/family.h"
#include "families/fields.h"
#include "weights/checkpoint.h"
#include "weights/coded_files_for_test.h"
#include "weights/fixtures_for_test.h"

namespace volley::decode::mtp {
namespace {

constexpr int32_t kPositions = 64, kPageSize = 16, kPrompt = 40, kTokens = 5;

template <typename T>
T needed(Result<T> result) {
  VOLLEY_CHECK_MSG(result.ok(), result.ok() ? "" : result.error().message);
  return std::move(result).value();
}

// A head of tests/data/mtp, or the one in `dir`, beside its target, with the one sequence that its reference has.
class HeadFixture {
 public:
  explicit HeadFixture(const std::string& name, const std::string& dir = "")
      : dir_(dir.empty() ? "tests/data/mtp/" + name : dir),
        expected_(needed(weights::open_safetensors("tests/data/mtp/" + name + "/expected"))),
        device_(needed(make_cpu_device(1))),
        spec_(needed(decode::read_proposer(dir_))) {
    const std::string target_dir = "tests/data/targets/" + name;
    const families::TargetConfig config = needed(families::read_target(target_dir));
    VOLLEY_CHECK(spec_->check_target(config.decoder).ok());
    const auto checkpoint = weights::with_names(needed(weights::open_checkpoint(target_dir)), config.names);
    const model::Numerics numerics = model::resolve_numerics(ComputeType::kFloat32, checkpoint->main_dtype());
    const std::vector<model::Param> params = model::params(config.decoder);
    model::WeightLoader loader(*device_, *checkpoint, numerics, params);
    target_ = needed(model::Network::load(loader, checkpoint, config.decoder, numerics, kPositions));
    std::vector<model::KvShape> shapes = model::kv_shapes(config.decoder);
    for (const model::KvShape& shape : model::kv_shapes(spec_->facts().decoder)) shapes.push_back(shape);
    model::KvLayout layout = model::kv_layout(std::move(shapes), kPageSize, DType::kF32);
    for (kv::Group& group : layout.groups) group.pages = kPositions / kPageSize;
    model::add_states(config.decoder, 1, 1, DType::kF32, layout);
    kv_ = needed(model::KvMemory::allocate(*device_, layout));
    const auto files = weights::with_names(needed(weights::open_checkpoint(dir_)), spec_->facts().names);
    VOLLEY_CHECK(model::check_tensors(*files, spec_->facts().params).ok());
    const size_t of_target = target_->kv_layers();
    const ProposerLoad load = {*device_, files, *target_, nullptr,      numerics, kPositions, kv_->layers(of_target, 1),
                               kTokens,  0,     {},       std::nullopt, nullptr,  1};
    proposer_ = needed(spec_->load(load));
    sampler_ = needed(ops::SamplerState::create(*device_, 1, config.decoder.vocab));
    ops::SlotSampling greedy;
    greedy.params.temperature = 0;
    VOLLEY_CHECK(sampler_->start(0, greedy, {}, {}).ok());
    table_ = {2, 0, 3, 1};
    scratch_.emplace(needed(device_->allocate(size_t{64} << 20)));
    hidden_ = config.decoder.hidden;
    features_ = values("features", {kPrompt, hidden_});
    for (const float id : values("prompt_ids", {kPrompt})) ids_.push_back(static_cast<TokenId>(id));
  }

  // Rows from `begin` on: `known` of the prompt, then `rejected` ones that say something else.
  void commit(int32_t begin, int32_t known, int32_t rejected = 0) {
    ArenaScope scope(*scratch_);
    const int32_t rows = known + rejected;
    std::vector<TokenId> tokens(ids_.begin() + begin, ids_.begin() + begin + known);
    std::vector<float> features(features_.begin() + begin * hidden_, features_.begin() + (begin + known) * hidden_);
    tokens.resize(static_cast<size_t>(rows), 5);
    features.resize(static_cast<size_t>(rows * hidden_), 3.0f);
    ops::StepSegment segment;
    segment.start = begin;
    segment.known = segment.rows_reserved = rows;
    const ops::Step step = step_of(&segment, rows, tokens.data());
    PassMemory pass = take_pass({rows, 1, rows, 0, kPositions}, {}, tables(), *scratch_);
    ops::fill_verify_rows(device_->stream(), step, nullptr, {}, pass.rows, pass.choices);
    proposer_->commit(device_->stream(), pass.rows, TensorView(features.data(), DType::kF32, {rows, hidden_}),
                      *scratch_);
  }

  // What it drafts after `context` known tokens and the reference's next one.
  std::vector<TokenId> draft(int32_t context, int32_t tokens) {
    return draft(context, tokens, static_cast<TokenId>(values("last." + std::to_string(context), {1})[0]));
  }
  std::vector<TokenId> draft(int32_t context, int32_t tokens, TokenId last) {
    slot_.length = context + 1;
    slot_.last_token = last;
    ops::StepSegment segment;
    segment.block_index = 0;
    segment.draft = segment.drafts_reserved = tokens;
    std::vector<TokenId> drafted(static_cast<size_t>(tokens), -1);
    std::vector<float> confidence(static_cast<size_t>(tokens), -1.0f);
    DraftPass pass;
    pass.step = step_of(&segment, 1, nullptr);
    pass.step.blocks = 1;
    pass.length = pass.drafts = tokens;
    pass.tokens = drafted.data();
    pass.confidence = confidence.data();
    pass.page_tables = tables();
    pass.max_positions = kPositions;
    proposer_->draft(device_->stream(), pass, *sampler_, *scratch_);
    for (const float sure : confidence) EXPECT_TRUE(sure > 0 && sure <= 1) << sure;
    return drafted;
  }

  // 64 rows: the context, the next token and the drafts after it.
  std::vector<float> blocks() const { return values("blocks", {64, 2 + kTokens}); }
  std::vector<TokenId> reference(int32_t context) const {
    const std::vector<float> tokens = values("drafts." + std::to_string(context), {kTokens});
    return {tokens.begin(), tokens.end()};
  }

 private:
  ops::Step step_of(const ops::StepSegment* segment, int32_t rows, const TokenId* tokens) {
    ops::Step step;
    step.segments = segment;
    step.n = 1;
    step.max_segment_rows = rows;
    step.tokens = tokens;
    step.slots = &slot_;
    return step;
  }
  PageTables tables() {
    const TensorView table(table_.data(), DType::kI32, {1, std::ssize(table_)});
    return {table, table};
  }
  std::vector<float> values(const std::string& name, std::vector<int64_t> shape) const {
    const weights::SourceTensor tensor = needed(expected_->get(name, shape));
    const auto* data = reinterpret_cast<const float*>(tensor.data);
    return {data, data + std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())};
  }

  const std::string dir_;
  const std::shared_ptr<const weights::Checkpoint> expected_;
  const std::unique_ptr<Device> device_;
  const std::shared_ptr<const ProposerSpec> spec_;
  std::unique_ptr<model::Network> target_;
  std::unique_ptr<model::KvMemory> kv_;
  std::unique_ptr<Proposer> proposer_;
  std::unique_ptr<ops::SamplerState> sampler_;
  std::optional<Arena> scratch_;
  std::vector<int32_t> table_;
  ops::SlotRow slot_;
  std::vector<float> features_;
  std::vector<TokenId> ids_;
  int64_t hidden_ = 0;
};

TEST(MtpHead, DraftsWhatTheReferenceDoes) {
  for (const std::string& name : weights::folders("mtp")) {
    for (const int32_t context : {1, 9, kPrompt}) {
      for (const int32_t chunk : {kPrompt, 7, 1}) {
        HeadFixture head(name);
        for (int32_t begin = 0; begin < context; begin += chunk) head.commit(begin, std::min(chunk, context - begin));
        EXPECT_EQ(head.draft(context, kTokens), head.reference(context)) << name << ", " << context << " by " << chunk;
        // A chain is a prefix of a longer one.
        const std::vector<TokenId> whole = head.reference(context);
        EXPECT_EQ(head.draft(context, 2), std::vector<TokenId>(whole.begin(), whole.begin() + 2)) << name;
      }
    }
  }
}

TEST(MtpHead, DraftsTheReferencesOtherBlocks) {
  for (const std::string& name : weights::folders("mtp")) {
    HeadFixture head(name);
    const std::vector<float> blocks = head.blocks();
    int32_t known = 0;
    for (size_t i = 0; i < blocks.size(); i += 2 + kTokens) {
      const auto context = static_cast<int32_t>(blocks[i]);
      if (context < known) known = 0;
      head.commit(known, context - known);
      known = context;
      EXPECT_EQ(head.draft(context, kTokens, static_cast<TokenId>(blocks[i + 1])),
                std::vector<TokenId>(&blocks[i + 2], &blocks[i + 2] + kTokens))
          << name << ", " << context;
    }
  }
}

TEST(MtpHead, SeesNothingOfRejectedRows) {
  HeadFixture head("hybrid_tied");
  head.commit(0, 5);
  for (int32_t known = 5; known < 9; ++known) head.commit(known, 1, kTokens);
  EXPECT_EQ(head.draft(9, kTokens), head.reference(9));
}

TEST(MtpHead, OfCodesDraftsWhatTheirValuesDo) {
  const auto is_linear = [](const std::string& file_name) {
    return file_name.find("norm") == std::string::npos && !file_name.ends_with("gate.weight");
  };
  for (const std::string name : {"hybrid_tied", "next_experts"}) {
    for (const weights::TestCoding& coding : weights::kTestCodings) {
      const weights::CodedFolders made("tests/data/mtp/" + name, coding, is_linear);
      HeadFixture codes(name, made.codes()), values(name, made.values());
      for (HeadFixture* head : {&codes, &values}) head->commit(0, 9);
      const std::vector<TokenId> drafts = values.draft(9, kTokens);
      EXPECT_EQ(codes.draft(9, kTokens), drafts) << name << ", " << coding.name;
      EXPECT_NE(drafts, codes.reference(9)) << "these are other weights";
    }
  }
}

TEST(MtpHead, RefusesWhatIsNotBuilt) {
  const nlohmann::json good = needed(families::read_json_file("tests/data/mtp/hybrid_tied/config.json"));
  for (const auto& [patch, word] : {std::pair{R"({"mtp_num_hidden_layers": 0})", "no MTP head"},
                                    {R"({"mtp_num_hidden_layers": 2})", "mtp_num_hidden_layers"},
                                    {R"({"mtp_use_dedicated_embeddings": true})", "mtp_use_dedicated_embeddings"}}) {
    const TempFolder folder;
    folder.write("config.json", families::patched(good, patch).dump());
    const auto refused = decode::read_proposer(folder.path());
    ASSERT_FALSE(refused.ok()) << patch;
    EXPECT_THAT(refused.error().message, testing::HasSubstr(word));
  }
  const auto head = needed(decode::read_proposer("tests/data/mtp/hybrid_tied"));
  EXPECT_FALSE(head->check_target(needed(families::read_target("tests/data/targets/plain")).decoder).ok());
}

}  // namespace
}  // namespace volley::decode::mtp
