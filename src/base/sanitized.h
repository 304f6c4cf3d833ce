// Whether a sanitizer watches this program. Sanitizers slow loops down about twenty times and do not look for
// statistical errors, so long tests run only a part of their cases under them.
#pragma once

namespace volley {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace volley
