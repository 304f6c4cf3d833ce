// Errors a user can cause, as values. Threads: values, no shared state.
#pragma once

#include <cstdlib>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace volley {

// The kind of a failure; one table in serve/ maps each to an HTTP status, one in apps/ to an exit code.
enum class ErrorCode {
  kInvalidArgument,     // the input is wrong: change it
  kNotFound,            // a file, tensor, model or request that does not exist
  kFailedPrecondition,  // two good inputs that do not fit together (a drafter and a target)
  kResourceExhausted,   // too little memory, queue or context
  kUnimplemented,       // not supported by this build
  kDataLoss,            // a file that is damaged
  kCancelled,           // the caller gave up
  kUnavailable,         // shutting down or not ready: the same call may work later
  kInternal,            // our bug, caught before it did harm
};

// Upper-case snake name without the k, for logs and JSON: "INVALID_ARGUMENT".
inline const char* error_code_name(ErrorCode code) {
  // In the order of ErrorCode.
  constexpr const char* kNames[] = {"INVALID_ARGUMENT",   "NOT_FOUND",     "FAILED_PRECONDITION",
                                    "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "DATA_LOSS",
                                    "CANCELLED",          "UNAVAILABLE",   "INTERNAL"};
  const auto i = static_cast<size_t>(code);
  return i < std::size(kNames) ? kNames[i] : "UNKNOWN";
}

// `message` is a sentence that says what is wrong and how to fix it.
struct Error {
  ErrorCode code;
  std::string message;
};

// A T, or the Error that prevented it. value() on an error aborts: test ok() first.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }

  T& value() & { return get(); }
  const T& value() const& { return const_cast<Result*>(this)->get(); }
  T&& value() && { return std::move(get()); }
  T& operator*() & { return get(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(get()); }
  T* operator->() { return &get(); }
  const T* operator->() const { return &value(); }

  const Error& error() const {
    if (ok()) std::abort();
    return std::get<Error>(state_);
  }

 private:
  T& get() {
    if (!ok()) std::abort();
    return std::get<T>(state_);
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const {
    if (ok_) std::abort();
    return error_;
  }

 private:
  Error error_{};
  bool ok_ = true;
};

using Status = Result<void>;

inline Error invalid_argument(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}
inline Error not_found(std::string message) {
  return {ErrorCode::kNotFound, std::move(message)};
}
inline Error failed_precondition(std::string message) {
  return {ErrorCode::kFailedPrecondition, std::move(message)};
}
inline Error resource_exhausted(std::string message) {
  return {ErrorCode::kResourceExhausted, std::move(message)};
}
inline Error unimplemented(std::string message) {
  return {ErrorCode::kUnimplemented, std::move(message)};
}
inline Error data_loss(std::string message) {
  return {ErrorCode::kDataLoss, std::move(message)};
}
inline Error internal_error(std::string message) {
  return {ErrorCode::kInternal, std::move(message)};
}

}  // namespace volley

// Returns the error of `expression`, a Result or Status, from the enclosing function.
#define VOLLEY_RETURN_IF_ERROR(expression)                        \
  do {                                                            \
    if (auto volley_status = (expression); !volley_status.ok()) { \
      return volley_status.error();                               \
    }                                                             \
  } while (0)

#define VOLLEY_CONCAT_INNER(a, b) a##b
#define VOLLEY_CONCAT(a, b) VOLLEY_CONCAT_INNER(a, b)
// VOLLEY_ASSIGN(auto x, f()): x = the value of f(), or returns its error from the enclosing function.
#define VOLLEY_ASSIGN(declaration, expression)                 \
  auto VOLLEY_CONCAT(volley_result_, __LINE__) = (expression); \
  if (!VOLLEY_CONCAT(volley_result_, __LINE__).ok()) {         \
    return VOLLEY_CONCAT(volley_result_, __LINE__).error();    \
  }                                                            \
  declaration = std::move(VOLLEY_CONCAT(volley_result_, __LINE__)).value()
