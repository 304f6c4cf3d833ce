// Names of what is kept for clients. On a server without keys a name is all that keeps others from it.
#pragma once

#include <string>

namespace volley::serve {

// 32 hexadecimal digits: 128 random bits of the system's, which nobody can guess from other ids. Any thread.
std::string random_id();

}  // namespace volley::serve
