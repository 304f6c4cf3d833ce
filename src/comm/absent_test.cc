#include <gtest/gtest.h>

#include "comm/comm.h"

namespace volley::comm {
namespace {

TEST(Group, OnGpusIsRefusedWhereCudaIsNotBuilt) {
  const auto group = make_group(DeviceKind::kCuda, 2, 0);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(group.error().message.find("--device cpu"), std::string::npos) << group.error().message;
}

}  // namespace
}  // namespace volley::comm
