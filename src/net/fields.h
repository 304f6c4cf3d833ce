// The fields of a message, one after the other: one list of them both writes the message and reads it. Reading checks
// bounds and alternatives; after the first failure values are empty or the least (ByteReader). Threads: values, no
// shared state.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "net/bytes.h"

namespace volley::net {

class Fields {
 public:
  Fields() = default;  // writes
  explicit Fields(std::span<const std::byte> message) : reader_(message) {}

  bool reads() const { return reader_.has_value(); }
  const std::vector<std::byte>& written() const { return writer_.bytes(); }

  template <typename... T>
  void values(T&... all) {
    ((reads() ? void(all = reader_->take<T>()) : writer_.put(all)), ...);
  }
  // A number from least to most.
  template <typename T>
  void within(T& value, std::type_identity_t<T> least, std::type_identity_t<T> most, const char* what) {
    if (reads()) {
      value = reader_->take_within<T>(least, most, what);
    } else {
      writer_.put(value);
    }
  }
  template <typename T>
  void array(std::vector<T>& values, size_t most, const char* what) {
    if (reads()) {
      values = reader_->take_array<T>(most, what);
    } else {
      writer_.put_array(std::span<const T>(values));
    }
  }
  // Longer ones are cut when they are written.
  void text(std::string& text, size_t most, const char* what) {
    if (reads()) {
      text = reader_->take_string(most, what);
    } else {
      writer_.put_string(std::string_view(text).substr(0, most));
    }
  }
  // item(T&) lists the fields of one item, at least one field.
  template <typename T>
  void list(std::vector<T>& items, uint32_t most, const char* what, const auto& item) {
    auto count = static_cast<uint32_t>(items.size());
    within(count, 0, most, what);
    if (reads()) items.clear();
    for (uint32_t i = 0; i < count && !failed(); ++i) item(reads() ? items.emplace_back() : items[i]);
  }
  // The number of the alternative, then fields(it).
  template <typename... T>
  void one_of(std::variant<T...>& value, const char* what, const auto& fields) {
    auto index = static_cast<uint8_t>(value.index());
    within(index, 0, sizeof...(T) - 1, what);
    if (reads()) {
      [&]<size_t... I>(std::index_sequence<I...>) {
        ((index == I ? void(value.template emplace<I>()) : void()), ...);
      }
      (std::index_sequence_for<T...>());
    }
    std::visit(fields, value);
  }

  bool failed() const { return reads() && reader_->failed(); }
  void fail(std::string why) {
    VOLLEY_CHECK_MSG(reads(), why);
    reader_->fail(std::move(why));
  }
  Status finish(const char* message) { return reader_->finish(message); }  // REQUIRES: reads()

 private:
  std::optional<ByteReader> reader_;
  ByteWriter writer_;
};

}  // namespace volley::net
