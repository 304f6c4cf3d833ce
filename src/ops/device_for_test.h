// Op tests on a GPU: the device, or a skip that says why; and copies between host vectors and device tensors.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "device/device.h"

namespace volley::ops {

// The first GPU, or null with `why` saying what is missing.
inline std::unique_ptr<Device> cuda_device_for_test(std::string& why) {
  auto device = make_cuda_device(0);
  if (!device.ok()) {
    why = device.error().message;
    return nullptr;
  }
  return std::move(*device);
}

// A tensor on a device, made from host values and read back.
class DeviceTensor {
 public:
  template <typename T>
  DeviceTensor(Device& device, const std::vector<T>& values) : DeviceTensor(device, values.size() * sizeof(T)) {
    device_.upload(buffer_.data(), values.data(), values.size() * sizeof(T));
  }
  // Poisoned: every byte is 0xff, which is NaN as bf16 and fp32.
  DeviceTensor(Device& device, size_t bytes) : device_(device), bytes_(bytes) {
    buffer_ = std::move(device.allocate(bytes)).value();
    const std::vector<char> poison(bytes, static_cast<char>(0xff));
    device.upload(buffer_.data(), poison.data(), bytes);
  }

  TensorView view(DType dtype, std::initializer_list<int64_t> dims) const { return buffer_.view(dtype, dims); }

  template <typename T>
  std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    device_.download(values.data(), buffer_.data(), bytes_);
    return values;
  }

 private:
  Device& device_;
  size_t bytes_;
  Buffer buffer_;
};

// Tests with the CPU or a GPU as their parameter.
class OnEachDevice : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    auto device = GetParam() == DeviceKind::kCpu ? make_cpu_device(1) : make_cuda_device(0);
    if (!device.ok()) GTEST_SKIP() << "needs a GPU: " << device.error().message;
    device_ = std::move(*device);
  }

  std::unique_ptr<Device> device_;
};
#define VOLLEY_ON_EACH_DEVICE(suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::Values(DeviceKind::kCpu, DeviceKind::kCuda), \
                           [](const auto& info) { return info.param == DeviceKind::kCpu ? "Cpu" : "Cuda"; })

}  // namespace volley::ops

// At the start of a test: `device` is a GPU, or the test is skipped by name.
#define VOLLEY_CUDA_DEVICE_OR_SKIP(device)                                       \
  std::string why_skipped;                                                       \
  const auto device##_owner = ::volley::ops::cuda_device_for_test(why_skipped);  \
  if (device##_owner == nullptr) GTEST_SKIP() << "needs a GPU: " << why_skipped; \
  [[maybe_unused]] ::volley::Device& device = *device##_owner

// A test that is built twice: for the CPU, and with VOLLEY_OPS_TEST_CUDA for a GPU. It begins with DEVICE_UNDER_TEST.
#ifdef VOLLEY_OPS_TEST_CUDA
#define DEVICE_UNDER_TEST VOLLEY_CUDA_DEVICE_OR_SKIP(device)
#define DEVICE_TEST(suite, name) TEST(suite##Cuda, name)
#else
#define DEVICE_UNDER_TEST                        \
  const auto device_owner = *make_cpu_device(2); \
  Device& device = *device_owner
#define DEVICE_TEST(suite, name) TEST(suite, name)
#endif
