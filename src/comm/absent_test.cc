#include <gtest/gtest.h>

#include "comm/comm.h"
#include "comm/row_exchange.h"

namespace volley::comm {
namespace {

TEST(Group, OnGpusIsRefusedWhereCudaIsNotBuilt) {
  const auto group = make_group(DeviceKind::kCuda, 2, 0);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(group.error().message.find("--device cpu"), std::string::npos) << group.error().message;
  const auto of_nodes = make_group_of_nodes(DeviceKind::kCuda, 2, 0, 2, 0, {});
  ASSERT_FALSE(of_nodes.ok());
  EXPECT_EQ(of_nodes.error().code, ErrorCode::kUnimplemented);
  EXPECT_EQ(make_cuda_row_exchanges({0, 1}, 8, 4096).error().code, ErrorCode::kUnimplemented);
  EXPECT_EQ(nccl_version().error().code, ErrorCode::kUnimplemented);
}

}  // namespace
}  // namespace volley::comm
