#include "decode/replay/replay_spec.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "families/fields.h"
#include "ops/replay/replay.h"

namespace volley::decode::replay {
namespace {

using families::ConfigFields;

constexpr size_t kMaxAnswerBytes = size_t{1} << 30;  // keeps the number of tokens within an int32

struct Answers {
  std::map<uint64_t, std::vector<TokenId>> by_seed;
  float accuracy = 1;
  uint32_t salt = 0;
};

Result<std::map<uint64_t, std::vector<TokenId>>> read_answers(const std::string& path) {
  VOLLEY_ASSIGN(std::string text, read_file(path, kMaxAnswerBytes));
  std::istringstream lines(std::move(text));
  std::map<uint64_t, std::vector<TokenId>> answers;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    const bool good = row.is_object() && row.contains("seed") && row["seed"].is_number_unsigned() &&
                      row.contains("token_ids") && row["token_ids"].is_array() &&
                      std::all_of(row["token_ids"].begin(), row["token_ids"].end(), [](const nlohmann::json& id) {
                        return id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
                      });
    const std::string where = path + ", line " + std::to_string(number);
    if (!good) {
      return data_loss(where + " must be an object with \"seed\" (a number) and \"token_ids\" (a list of ids).");
    }
    const auto seed = row["seed"].get<uint64_t>();
    if (!answers.emplace(seed, row["token_ids"].get<std::vector<TokenId>>()).second) {
      return data_loss(where + " is a second answer for seed " + std::to_string(seed) + ": keep one.");
    }
  }
  return answers;
}

template <typename T>
Result<Buffer> copy_to(Device& device, const std::vector<T>& values) {
  VOLLEY_ASSIGN(Buffer buffer, device.allocate(std::max<size_t>(1, values.size()) * sizeof(T)));
  device.upload(buffer.data(), values.data(), values.size() * sizeof(T));
  return buffer;
}

class ReplayProposer final : public Proposer {
 public:
  static Result<std::unique_ptr<Proposer>> create(Device& device, const Answers& answers, int32_t proposals,
                                                  int32_t vocab) {
    std::vector<uint64_t> seeds;
    std::vector<int32_t> begins = {0};
    std::vector<TokenId> tokens;
    for (const auto& [seed, ids] : answers.by_seed) {
      seeds.push_back(seed);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      begins.push_back(static_cast<int32_t>(tokens.size()));
    }
    auto proposer = std::make_unique<ReplayProposer>();
    proposer->proposals_ = proposals;
    VOLLEY_ASSIGN(proposer->seeds_, copy_to(device, seeds));
    VOLLEY_ASSIGN(proposer->begins_, copy_to(device, begins));
    VOLLEY_ASSIGN(proposer->tokens_, copy_to(device, tokens));
    ops::ReplayTable& table = proposer->table_;
    table.seeds = static_cast<const uint64_t*>(proposer->seeds_.data());
    table.begins = static_cast<const int32_t*>(proposer->begins_.data());
    table.tokens = static_cast<const TokenId*>(proposer->tokens_.data());
    table.answers = static_cast<int32_t>(seeds.size());
    table.vocab = vocab;
    table.accuracy = answers.accuracy;
    table.salt = answers.salt;
    return std::unique_ptr<Proposer>(std::move(proposer));
  }

  int32_t proposals() const override { return proposals_; }
  void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) override {
    if (pass.drafts > 0) ops::replay_drafts(stream, pass.step, table_, pass.tokens, pass.confidence);
  }

 private:
  int32_t proposals_ = 0;
  Buffer seeds_, begins_, tokens_;
  ops::ReplayTable table_;
};

class ReplaySpec final : public ProposerSpec {
 public:
  ReplaySpec(ProposerFacts facts, Answers answers) : facts_(std::move(facts)), answers_(std::move(answers)) {}

  const ProposerFacts& facts() const override { return facts_; }
  Status check_target(const model::Decoder& target) const override {
    for (const auto& [seed, ids] : answers_.by_seed) {
      for (const TokenId id : ids) {
        if (id < target.vocab) continue;
        return failed_precondition("The answer to replay for seed " + std::to_string(seed) + " holds token " +
                                   std::to_string(id) + ", but the target's vocabulary ends at " +
                                   std::to_string(target.vocab - 1) + ". Record answers of this target.");
      }
    }
    return {};
  }
  Result<std::unique_ptr<Proposer>> load(const ProposerLoad& load) const override {
    return ReplayProposer::create(load.device, answers_, load.proposals, load.target.spec().vocab);
  }

 private:
  const ProposerFacts facts_;
  const Answers answers_;
};

}  // namespace

Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, families::read_json_file(dir + "/config.json"));
  const ConfigFields config(json, dir + "/config.json");
  ProposerFacts facts;
  facts.architecture = "ReplayDraftModel";
  VOLLEY_ASSIGN(const int32_t block_size, config.integer("block_size", 2, 1024));
  facts.proposals = block_size - 1;
  Answers answers;
  VOLLEY_ASSIGN(const double accuracy, config.number("accuracy", {.min = 0, .max = 1}, 1.0));
  answers.accuracy = static_cast<float>(accuracy);
  VOLLEY_ASSIGN(const int32_t salt, config.integer("salt", 0, INT32_MAX, 0));
  answers.salt = static_cast<uint32_t>(salt);
  VOLLEY_ASSIGN(const std::string file, config.text("answers", "answers.jsonl"));
  VOLLEY_RETURN_IF_ERROR(config.refuse_unread());
  VOLLEY_ASSIGN(answers.by_seed, read_answers(dir + "/" + file));
  return std::shared_ptr<const ProposerSpec>(std::make_shared<ReplaySpec>(std::move(facts), std::move(answers)));
}

}  // namespace volley::decode::replay
