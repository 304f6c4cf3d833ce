// What the engine's tests share. Threads: as Device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/device.h"

namespace volley::engine {

// A device that counts what of its own memory it hands out, and has no memory for what `refuse` says.
class WatchedDevice final : public Device {
 public:
  explicit WatchedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  int64_t bytes = 0;
  std::function<bool(size_t bytes)> refuse;

  DeviceKind kind() const override { return device_->kind(); }
  Stream& stream() override { return device_->stream(); }
  Result<Buffer> allocate(size_t size) override {
    if (refuse && refuse(size)) return resource_exhausted("There is no memory left.");
    bytes += static_cast<int64_t>(size);
    return device_->allocate(size);
  }
  void attach_thread() override { device_->attach_thread(); }
  Result<Buffer> allocate_host(size_t size) override {
    if (kind() == DeviceKind::kCpu) bytes += static_cast<int64_t>(size);
    return device_->allocate_host(size);
  }
  void upload(void* to, const void* from, size_t size) override { device_->upload(to, from, size); }
  void download(void* to, const void* from, size_t size) override { device_->download(to, from, size); }
  void enqueue_upload(void* to, const void* from, size_t size) override { device_->enqueue_upload(to, from, size); }
  void enqueue_download(void* to, const void* from, size_t size) override { device_->enqueue_download(to, from, size); }
  std::unique_ptr<Fence> make_fence() override { return device_->make_fence(); }
  void synchronize() override { device_->synchronize(); }
  std::unique_ptr<StepGraph> record(const std::function<void()>& enqueue) override { return device_->record(enqueue); }
  std::string name() const override { return device_->name(); }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace volley::engine
