// Devices that the engine's tests share. Threads: as Device.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/device.h"

namespace volley::engine {

// Another device, of which a test changes some calls.
class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  DeviceKind kind() const override { return device_->kind(); }
  Stream& stream() override { return device_->stream(); }
  void attach_thread() override { device_->attach_thread(); }
  void upload(void* to, const void* from, size_t size) override { called().upload(to, from, size); }
  void download(void* to, const void* from, size_t size) override { called().download(to, from, size); }
  void enqueue_upload(void* to, const void* from, size_t size) override { called().enqueue_upload(to, from, size); }
  void enqueue_download(void* to, const void* from, size_t size) override { called().enqueue_download(to, from, size); }
  void enqueue_copy(void* to, const void* from, size_t size) override { called().enqueue_copy(to, from, size); }
  std::unique_ptr<Fence> make_fence() override { return device_->make_fence(); }
  void synchronize() override { called().synchronize(); }
  std::unique_ptr<StepGraph> record(const std::function<void()>& enqueue) override { return device_->record(enqueue); }
  std::string name() const override { return device_->name(); }

 protected:
  // Before each call that moves or waits.
  virtual void before_call() {}

  const std::unique_ptr<Device> device_;

 private:
  Device& called() {
    before_call();
    return *device_;
  }
};

// Counts the device's own memory that is handed out, and refuses the allocations that `refuse` names. One at a time.
class WatchedDevice final : public WrappedDevice {
 public:
  explicit WatchedDevice(std::unique_ptr<Device> device) : WrappedDevice(std::move(device)) { held() = 0; }
  int64_t bytes() const { return held(); }  // held now
  std::function<bool(size_t bytes)> refuse;

  Result<Buffer> allocate(size_t size) override {
    if (refuse && refuse(size)) return resource_exhausted("There is no memory left.");
    VOLLEY_ASSIGN(Buffer buffer, device_->allocate(size));
    return watched(std::move(buffer), size);
  }
  Result<Buffer> allocate_host(size_t size) override {
    VOLLEY_ASSIGN(Buffer buffer, device_->allocate_host(size));
    return kind() == DeviceKind::kCpu ? watched(std::move(buffer), size) : std::move(buffer);
  }

 private:
  // A freed buffer passes only its address, so this keeps the rest.
  struct Entry {
    Buffer buffer;
    int64_t asked_for;
  };
  static std::map<void*, Entry>& entries() {
    static std::map<void*, Entry> entries;
    return entries;
  }
  static std::atomic<int64_t>& held() {
    static std::atomic<int64_t> held;
    return held;
  }
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static Buffer watched(Buffer buffer, size_t size) {
    void* const data = buffer.data();
    const size_t bytes = buffer.bytes();
    const std::lock_guard lock(mutex());
    held() += static_cast<int64_t>(size);
    entries().emplace(data, Entry{std::move(buffer), static_cast<int64_t>(size)});
    return Buffer(data, bytes, [](void* at, size_t) {
      const std::lock_guard lock(mutex());
      const auto entry = entries().find(at);
      held() -= entry->second.asked_for;
      entries().erase(entry);
    });
  }
};

// Calls `before` in front of every call of the device. `before` may throw DeviceFault or refuse memory. The device is
// borrowed; calls come from the thread that uses it.
class FaultyDevice final : public WrappedDevice {
 public:
  FaultyDevice(std::unique_ptr<Device> device, const std::function<bool(bool allocates)>* before)
      : WrappedDevice(std::move(device)), before_(*before) {}

  Result<Buffer> allocate(size_t size) override {
    if (!before_(true)) return resource_exhausted("There is no memory left.");
    return device_->allocate(size);
  }
  Result<Buffer> allocate_host(size_t size) override {
    if (!before_(true)) return resource_exhausted("There is no memory left.");
    return device_->allocate_host(size);
  }
  std::unique_ptr<Fence> make_fence() override { return std::make_unique<FaultyFence>(device_->make_fence(), before_); }

 private:
  void before_call() override { before_(false); }

  class FaultyFence final : public Fence {
   public:
    FaultyFence(std::unique_ptr<Fence> fence, const std::function<bool(bool)>& before)
        : fence_(std::move(fence)), before_(before) {}
    void set() override {
      before_(false);
      fence_->set();
    }
    void wait() override {
      before_(false);
      fence_->wait();
    }
    double seconds_since(const Fence& earlier) const override {
      return fence_->seconds_since(*static_cast<const FaultyFence&>(earlier).fence_);
    }

   private:
    std::unique_ptr<Fence> fence_;
    const std::function<bool(bool)>& before_;
  };

  const std::function<bool(bool allocates)>& before_;
};

}  // namespace volley::engine
