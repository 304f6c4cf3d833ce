// CHECK is for our own bugs: it prints the condition with its values and aborts, in every build. Errors that a user can
// cause are a Result instead.
#pragma once

#include <sstream>
#include <string>

namespace volley {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

template <typename A, typename B>
[[noreturn]] void check_op_failed(const char* file, int line, const char* condition, const A& a, const B& b) {
  std::ostringstream detail;
  detail << a << " vs " << b;
  check_failed(file, line, condition, detail.str());
}

}  // namespace volley

#define VOLLEY_CHECK(condition)                                                   \
  do {                                                                            \
    if (!(condition)) ::volley::check_failed(__FILE__, __LINE__, #condition, ""); \
  } while (0)
#define VOLLEY_CHECK_MSG(condition, message)                                             \
  do {                                                                                   \
    if (!(condition)) ::volley::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (0)
#define VOLLEY_CHECK_OP(op, a, b)                                                                                      \
  do {                                                                                                                 \
    const auto volley_a = (a);                                                                                         \
    const auto volley_b = (b);                                                                                         \
    if (!(volley_a op volley_b)) ::volley::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b, volley_a, volley_b); \
  } while (0)
#define VOLLEY_CHECK_EQ(a, b) VOLLEY_CHECK_OP(==, a, b)
#define VOLLEY_CHECK_LE(a, b) VOLLEY_CHECK_OP(<=, a, b)
#define VOLLEY_CHECK_LT(a, b) VOLLEY_CHECK_OP(<, a, b)
#define VOLLEY_CHECK_GE(a, b) VOLLEY_CHECK_OP(>=, a, b)
#define VOLLEY_CHECK_GT(a, b) VOLLEY_CHECK_OP(>, a, b)
