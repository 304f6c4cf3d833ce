// Whether a sanitizer watches this program. Sanitizers slow loops down some twenty times and look for other things than
// statistics do: under them long tests take a part of their cases.
#pragma once

namespace volley {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace volley
