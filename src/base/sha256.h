// SHA-256 (FIPS 180-4), and a hash of large contents made of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace volley {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::span<const uint8_t> bytes);

// A hash as hard to collide as SHA-256, several times as fast: SHA-256 of `head`, of the content's length and of what
// sixteen chains of SHA-256's compression make of the content, of whose words each takes every sixteenth.
Sha256 content_hash(std::span<const uint8_t> head, std::span<const uint8_t> content);

}  // namespace volley
