// Protects: a drafter's map to the target's tokens is read as its makers wrote it, as offsets, or refused.
#include "decode/dflash/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace volley::decode::dflash {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Numbers final : public weights::Checkpoint {
 public:
  explicit Numbers(std::map<std::string, std::vector<int64_t>, std::less<>> tensors) : tensors_(std::move(tensors)) {}
  bool has(std::string_view name) const override { return tensors_.contains(name); }
  Result<weights::SourceTensor> get(std::string_view name, std::span<const int64_t>) const override {
    return not_found(std::string(name));
  }
  Result<weights::SourceTensor> get_part(std::string_view name, std::span<const int64_t>, int64_t,
                                         std::span<const int64_t>) const override {
    return not_found(std::string(name));
  }
  Status check(std::string_view name, std::span<const int64_t>) const override { return not_found(std::string(name)); }
  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    VOLLEY_RETURN_IF_ERROR(check_integers(name, count));
    return tensors_.find(name)->second;
  }
  Status check_integers(std::string_view name, int64_t count) const override {
    const auto found = tensors_.find(name);
    if (found != tensors_.end() && std::ssize(found->second) == count) return {};
    return not_found(std::string(name));
  }
  DType main_dtype() const override { return DType::kBF16; }
  std::vector<std::string> names() const override { return {"fc.weight"}; }

 private:
  std::map<std::string, std::vector<int64_t>, std::less<>> tensors_;
};

std::string refusal(std::map<std::string, std::vector<int64_t>, std::less<>> tensors, int32_t draft, int32_t vocab) {
  const auto ids = read_target_ids(Numbers(std::move(tensors)), draft, vocab);
  EXPECT_FALSE(ids.ok());
  if (ids.ok()) return "";
  EXPECT_EQ(ids.error().code, ErrorCode::kDataLoss);
  return ids.error().message;
}

TEST(DraftVocabulary, OffsetsAreAddedToTheDraftersIds) {
  const auto ids = read_target_ids(Numbers({{"d2t", {1, 1, 3, 0}}, {"t2d", {0, 1, 1, 1, 0, 1, 0}}}), 4, 7);
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  EXPECT_THAT(*ids, ElementsAre(1, 2, 5, 3)) << "in any order";
  EXPECT_THAT(*read_target_ids(Numbers({{"d2t", {2, -1}}}), 2, 3), ElementsAre(2, 0)) << "the flags may be left out";
}

TEST(DraftVocabulary, AMapThatMakesNoSenseIsRefused) {
  EXPECT_THAT(refusal({{"d2t", {0, 6}}}, 2, 7), HasSubstr("outside the target's vocabulary of 7"));
  EXPECT_THAT(refusal({{"d2t", {-1, 0}}}, 2, 7), HasSubstr("offset -1"));
  EXPECT_THAT(refusal({{"d2t", {0, INT64_MAX}}}, 2, 7), HasSubstr("outside"));
  EXPECT_THAT(refusal({{"d2t", {0, INT64_MIN}}}, 2, 7), HasSubstr("outside"));
  EXPECT_THAT(refusal({{"d2t", {4, 3}}}, 2, 7), HasSubstr("token 1 to 4, as another token before it"));
}

// A file with the target's ids instead of offsets could sometimes pass for a map. The flags reveal it.
TEST(DraftVocabulary, FlagsThatDisagreeAreRefused) {
  EXPECT_THAT(refusal({{"d2t", {1, 2}}, {"t2d", {0, 1, 1, 0}}}, 2, 4), HasSubstr("token 2"));
  EXPECT_THAT(refusal({{"d2t", {1, 1}}, {"t2d", {0, 1, 1, 1}}}, 2, 4), HasSubstr("token 3"));
}

}  // namespace
}  // namespace volley::decode::dflash
