#include "nodes/engine_options.h"

#include <type_traits>

namespace volley::nodes {
namespace {

constexpr size_t kMostText = 64 << 10;

struct Put {
  void operator()(const std::string& value) const { w.put_string(value); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(const T& value) const { w.put(value); }
  template <typename T>
  requires std::is_enum_v<T>
  void operator()(const T& value) const { w.put(static_cast<std::underlying_type_t<T>>(value)); }
  template <typename T>
  void operator()(const std::optional<T>& value) const {
    w.put(value.has_value());
    if (value) (*this)(*value);
  }
  void operator()(const VerifyPolicy& value) const { (*this)(value.kind), (*this)(value.tokens); }

  net::ByteWriter& w;
};

struct Take {
  void operator()(std::string& value) const { value = r.take_string(kMostText, "an option"); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) const { value = r.take<T>(); }
  template <typename T>
  requires std::is_enum_v<T>
  void operator()(T& value) const { value = static_cast<T>(r.take<std::underlying_type_t<T>>()); }
  template <typename T>
  void operator()(std::optional<T>& value) const {
    if (r.take<bool>()) (*this)(value.emplace());
  }
  void operator()(VerifyPolicy& value) const { (*this)(value.kind), (*this)(value.tokens); }

  net::ByteReader& r;
};

}  // namespace

void put_options(net::ByteWriter& w, const EngineOptions& options) {
  for_each_option([&](const auto& option) { Put{w}(options.*option.field); });
}

EngineOptions take_options(net::ByteReader& r) {
  EngineOptions options;
  for_each_option([&](const auto& option) { Take{r}(options.*option.field); });
  return options;
}

}  // namespace volley::nodes
