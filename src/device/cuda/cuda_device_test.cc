// Protects: memory of a GPU is zeroed and aligned, uploads of any size arrive whole, and requests that cannot be met
// are refused with a sentence. Skipped without a GPU, except for the refusals.
#include <gtest/gtest.h>

#include <vector>

#include "device/device.h"

namespace volley {
namespace {

TEST(CudaDevice, RefusesADeviceThatIsNotThere) {
  const auto device = make_cuda_device(1000);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(device.error().message.empty());
}

TEST(CudaDevice, AllocatesZeroedMemoryAndCopies) {
  auto made = make_cuda_device(0);
  if (!made.ok()) GTEST_SKIP() << "needs a GPU: " << made.error().message;
  Device& device = **made;
  // More than both halves of the staging memory, and no multiple of them.
  const size_t bytes = (size_t{40} << 20) + 12345;
  const Buffer buffer = std::move(device.allocate(bytes)).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
  std::vector<uint8_t> got(bytes, 1), sent(bytes);
  device.download(got.data(), buffer.data(), bytes);
  EXPECT_EQ(got, sent);
  for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  device.upload(buffer.data(), sent.data(), bytes);
  device.download(got.data(), buffer.data(), bytes);
  EXPECT_EQ(got, sent);
}

TEST(CudaDevice, RefusesMoreMemoryThanThereIsAndGoesOn) {
  auto made = make_cuda_device(0);
  if (!made.ok()) GTEST_SKIP() << "needs a GPU: " << made.error().message;
  Device& device = **made;
  const auto refused = device.allocate(size_t{1} << 50);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(device.allocate(1 << 20).ok());
}

}  // namespace
}  // namespace volley
