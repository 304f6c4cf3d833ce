// Values as bytes for another process, and back: numbers little-endian, arrays and strings after their length. A reader
// never reads past its bytes, and never allocates for more bytes than it was given. Threads: values, no shared state.
#pragma once

#include <volley/result.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace volley::net {

static_assert(std::endian::native == std::endian::little, "values travel as they lie in memory");

class ByteWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void put(T value) { put_bytes(std::as_bytes(std::span(&value, 1))); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void put_array(std::span<const T> values) {
    put(static_cast<uint32_t>(values.size()));
    put_bytes(std::as_bytes(values));
  }
  void put_string(std::string_view text) { put_array(std::span<const char>(text.data(), text.size())); }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  void put_bytes(std::span<const std::byte> more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }

  std::vector<std::byte> bytes_;
};

// After the first failure all values are empty or zero, so a caller may read on and check once, at the end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T take() {
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = take<uint8_t>();
      if (value > 1) fail("a yes or no is " + std::to_string(value));
      return value == 1;
    } else {
      T value = 0;
      if (const auto from = take_bytes(sizeof(T)); !from.empty()) std::memcpy(&value, from.data(), sizeof(T));
      return value;
    }
  }
  // A number from least to most.
  template <typename T>
  T take_within(T least, T most, const char* what) {
    const T value = take<T>();
    if (!failed() && !(value >= least && value <= most)) {  // NaN is not within, either
      fail(std::string(what) + " is " + std::to_string(value) + ", not within " + std::to_string(least) + " and " +
           std::to_string(most));
    }
    return failed() ? least : value;
  }
  template <typename T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) std::vector<T> take_array(size_t most,
                                                                                          const char* what) {
    const size_t count = take<uint32_t>();
    if (!failed() && count > most) {
      fail(std::string(what) + " has " + std::to_string(count) + " values, more than " + std::to_string(most));
    }
    std::vector<T> values;
    if (const auto from = take_bytes(failed() ? 0 : count * sizeof(T)); !from.empty()) {
      values.resize(count);
      std::memcpy(values.data(), from.data(), from.size());
    }
    return values;
  }
  std::string take_string(size_t most, const char* what) {
    const std::vector<char> text = take_array<char>(most, what);
    return {text.begin(), text.end()};
  }

  // Records what is wrong with the bytes; the first failure is kept.
  void fail(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    left_ = {};
  }
  bool failed() const { return !why_.empty(); }
  // kInvalidArgument after a failure, or if bytes are left over.
  Status finish(const char* message) {
    if (!failed() && !left_.empty()) fail(std::to_string(left_.size()) + " bytes are left over");
    if (!failed()) return {};
    return invalid_argument(std::string(message) + " cannot be read: " + why_ + ".");
  }

 private:
  std::span<const std::byte> take_bytes(size_t count) {
    if (failed()) return {};
    if (count > left_.size()) {
      fail("it ends too early");
      return {};
    }
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }

  std::span<const std::byte> left_;
  std::string why_;
};

}  // namespace volley::net
