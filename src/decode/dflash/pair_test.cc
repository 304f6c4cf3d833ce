// Protects: a drafter that does not belong to its target is refused before weights are read, with both values named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode/dflash/config.h"
#include "decode/proposers.h"
#include "families/family.h"

namespace volley::decode::dflash {
namespace {

using testing::AllOf;
using testing::HasSubstr;

model::Decoder target() {
  model::Decoder spec;
  spec.hidden = 64, spec.vocab = 100;
  spec.layers.resize(8);
  return spec;
}

Facts drafter() {
  Facts facts;
  facts.decoder.hidden = 64, facts.decoder.vocab = 100;
  facts.decoder.layers.resize(2);
  facts.proposals = 15, facts.target_layers = 8, facts.mask_token = 99;
  facts.feature_layers = {5, 0, 7};
  return facts;
}

Status check_pair(const Facts& draft) {
  return make_spec(draft)->check_target(target());
}

void expect_misfit(const Facts& draft, const testing::Matcher<const std::string&>& message) {
  const Status status = check_pair(draft);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.error().message, message);
}

TEST(Pair, FitsWhenEverythingAgrees) {
  const Status status = check_pair(drafter());
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST(Pair, OtherSizesDoNotFit) {
  Facts draft = drafter();
  draft.decoder.hidden = 128;
  expect_misfit(draft, AllOf(HasSubstr("hidden_size"), HasSubstr("128"), HasSubstr("64")));
  draft = drafter();
  draft.decoder.vocab = 101;
  expect_misfit(draft, AllOf(HasSubstr("vocab_size"), HasSubstr("101"), HasSubstr("100")));
  draft = drafter();
  draft.target_layers = 9;
  expect_misfit(draft, AllOf(HasSubstr("num_target_layers"), HasSubstr("9"), HasSubstr("8")));
}

TEST(Pair, LayerIdsMustExistOnce) {
  Facts draft = drafter();
  draft.feature_layers = {1, 8};
  expect_misfit(draft, AllOf(HasSubstr("layer 8"), HasSubstr("0 to 7")));
  draft.feature_layers = {-1, 2};
  expect_misfit(draft, HasSubstr("layer -1"));
  draft.feature_layers = {3, 5, 3};
  expect_misfit(draft, AllOf(HasSubstr("layer 3"), HasSubstr("twice")));
}

TEST(Pair, TheMaskTokenMustHaveAnEmbedding) {
  Facts draft = drafter();
  draft.mask_token = 100;
  expect_misfit(draft, AllOf(HasSubstr("mask_token_id"), HasSubstr("100"), HasSubstr("99")));
}

TEST(BlockSize, ZeroMeansTheDraftersOwn) {
  std::vector<std::string> warnings;
  EXPECT_EQ(*resolve_block_size(drafter(), 0, &warnings), 16);
  EXPECT_EQ(*resolve_block_size(drafter(), 16, &warnings), 16);
  EXPECT_EQ(*resolve_block_size(drafter(), 2, &warnings), 2);
  EXPECT_TRUE(warnings.empty());
}

TEST(BlockSize, BelowTwoThereIsNothingToDraft) {
  std::vector<std::string> warnings;
  for (const int32_t size : {1, -1, INT32_MIN}) {
    const auto result = resolve_block_size(drafter(), size, &warnings);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().message, HasSubstr(std::to_string(size)));
  }
}

TEST(BlockSize, AboveWhatWasTrainedIsAWarning) {
  std::vector<std::string> warnings;
  EXPECT_EQ(*resolve_block_size(drafter(), 17, &warnings), 17);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("17"), HasSubstr("16")));
}

// The numbers were counted by hand from the files in the repository.
TEST(Parameters, AreThoseOfThePocketModels) {
  const auto pocket = families::read_target("models/pocket");
  const auto dflash = decode::read_proposer("models/pocket-dflash");
  ASSERT_TRUE(pocket.ok()) << pocket.error().message;
  ASSERT_TRUE(dflash.ok()) << dflash.error().message;
  EXPECT_TRUE((*dflash)->check_target(pocket->decoder).ok());
  const int64_t attention = 256 * (384 + 128 + 128 + 384), mlp = 3 * 256 * 768, norms = 2 * 256 + 2 * 64;
  const int64_t whole = 2048 * 256 + 8 * (attention + mlp + norms) + 256;
  EXPECT_EQ(model::count(model::params(pocket->decoder)), whole);
  EXPECT_EQ(model::count((*dflash)->facts().params), 2 * (attention + mlp + norms) + 256 + 2 * 256 * 256 + 256);
  model::Decoder untied = pocket->decoder;
  untied.tied_embeddings = false;
  EXPECT_EQ(model::count(model::params(untied)), whole + 2048 * 256);
}

}  // namespace
}  // namespace volley::decode::dflash
