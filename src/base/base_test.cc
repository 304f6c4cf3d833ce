#include <gtest/gtest.h>
#include <volley/result.h>

#include "base/check.h"
#include "base/ids.h"

namespace volley {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_argument("odd");
  return x / 2;
}

Result<int> quarter(int x) {
  VOLLEY_ASSIGN(const int h, half(x));
  return half(h);
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error().code, ErrorCode::kInvalidArgument);
  EXPECT_STREQ(error_code_name(quarter(7).error().code), "INVALID_ARGUMENT");
}

TEST(Result, ValueOfAnErrorAborts) {
  EXPECT_DEATH((void)half(3).value(), "");
}

TEST(Check, NamesConditionAndValues) {
  EXPECT_DEATH(VOLLEY_CHECK_EQ(2 + 2, 5), "2 \\+ 2 == 5: 4 vs 5");
}

TEST(Ids, AreInt32WideAndOrdered) {
  static_assert(sizeof(SlotId) == 4 && std::is_trivially_copyable_v<SlotId>);
  EXPECT_LT(PageId(1), PageId(2));
}

}  // namespace
}  // namespace volley
