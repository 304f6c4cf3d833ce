// Names of stored objects. On a server without keys, only the name protects an object from other clients.
#pragma once

#include <string>

namespace volley::serve {

// 32 hexadecimal digits: 128 random bits from the system, which other ids do not reveal. Any thread.
std::string random_id();

}  // namespace volley::serve
