#include "nodes/assignment.h"

#include <limits>
#include <type_traits>

namespace volley::nodes {
namespace {

constexpr uint32_t kAssignment = 300;
constexpr size_t kMostSizes = 4096;
constexpr size_t kMostText = 64 << 10;

// An option. Both processes are the same program, so enumerators have the same numbers.
struct OptionField {
  void operator()(std::string& value) const { f.text(value, kMostText, "an option"); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) const { f.values(value); }
  template <typename T>
  requires std::is_enum_v<T>
  void operator()(T& value) const {
    auto number = static_cast<std::underlying_type_t<T>>(value);
    f.values(number);
    value = static_cast<T>(number);
  }
  template <typename T>
  void operator()(std::optional<T>& value) const {
    bool is_given = value.has_value();
    f.values(is_given);
    if (!is_given) return value.reset();
    if (f.reads()) value.emplace();
    (*this)(*value);
  }
  void operator()(VerifyPolicy& value) const { (*this)(value.kind), (*this)(value.tokens); }

  net::Fields& f;
};

void fields(net::Fields& f, Assignment& assignment) {
  for_each_option([&](const auto& option) { OptionField{f}(assignment.options.*option.field); });
  f.within(assignment.available_bytes, 0, std::numeric_limits<int64_t>::max(), "the memory");
  fields(f, assignment.facts);
  f.array(assignment.sizes, kMostSizes, "the list of sizes");
}

}  // namespace

void append_assignment(Bytes& out, Assignment assignment) {
  net::Fields f;
  fields(f, assignment);
  net::append_frame(out, kAssignment, f.written());
}

Result<Assignment> read_assignment(const net::Frame& frame) {
  if (frame.kind != kAssignment) return invalid_argument("another message came than an assignment");
  net::Fields f(frame.payload);
  Assignment assignment;
  fields(f, assignment);
  VOLLEY_RETURN_IF_ERROR(f.finish("an assignment"));
  return assignment;
}

}  // namespace volley::nodes
