#include "base/sha256.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace volley {
namespace {

constexpr size_t kBlock = 64, kLanes = 16, kRounds = 64;
typedef uint32_t Lanes __attribute__((vector_size(kLanes * sizeof(uint32_t))));  // NOLINT: a vector has no other form

// The first bits of the fractional parts of the square roots and cube roots of the first primes.
constexpr std::array<uint32_t, 8> kBegin = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::array<uint32_t, kRounds> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// to ^= x, rotated to the right by each number of bits. Nothing returns a Word: how depends on the instruction set.
template <int... kBits, typename Word>
[[gnu::always_inline]] inline void xor_turned(const Word& x, Word& to) {
  ((to ^= x >> kBits | x << (32 - kBits)), ...);
}

template <typename Word>
[[gnu::always_inline]] inline void compress(std::array<Word, 8>& state, std::array<Word, kRounds>& w) {
  for (size_t i = 16; i < kRounds; ++i) {
    Word early = w[i - 15] >> 3, late = w[i - 2] >> 10;
    xor_turned<7, 18>(w[i - 15], early);
    xor_turned<17, 19>(w[i - 2], late);
    w[i] = w[i - 16] + early + w[i - 7] + late;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < kRounds; ++i) {
    Word of_a = {}, of_e = {};
    xor_turned<2, 13, 22>(a, of_a);
    xor_turned<6, 11, 25>(e, of_e);
    const Word more = h + of_e + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const Word other = of_a + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + more, d = c, c = b, b = a, a = more + other;
  }
  const std::array<Word, 8> sums = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < sums.size(); ++i) state[i] += sums[i];
}

uint32_t big_endian(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}

[[gnu::always_inline]] inline void chain(std::span<const uint8_t> content, std::array<Lanes, 8>& state) {
  std::array<Lanes, kRounds> w;
  for (size_t begin = 0; begin < content.size(); begin += kLanes * kBlock) {
    std::array<uint8_t, kLanes* kBlock> block = {};  // the last may be short: the length tells zeros apart
    std::copy_n(content.begin() + static_cast<ptrdiff_t>(begin), std::min(block.size(), content.size() - begin),
                block.begin());
    std::memcpy(w.data(), block.data(), block.size());
    compress(state, w);
  }
}

// The same for wider registers.
#ifdef __x86_64__
[[gnu::target("avx512f")]] void chain_in_512_bits(std::span<const uint8_t> content, std::array<Lanes, 8>& state) {
  chain(content, state);
}
[[gnu::target("avx2")]] void chain_in_256_bits(std::span<const uint8_t> content, std::array<Lanes, 8>& state) {
  chain(content, state);
}
#endif

void chain_at_best(std::span<const uint8_t> content, std::array<Lanes, 8>& state) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return chain_in_512_bits(content, state);
  if (__builtin_cpu_supports("avx2")) return chain_in_256_bits(content, state);
#endif
  chain(content, state);
}

}  // namespace

Sha256 sha256(std::span<const uint8_t> bytes) {
  std::vector<uint8_t> padded(bytes.begin(), bytes.end());
  padded.push_back(0x80);
  while (padded.size() % kBlock != kBlock - 8) padded.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<uint8_t>(uint64_t{bytes.size()} * 8 >> shift));
  std::array<uint32_t, 8> state = kBegin;
  std::array<uint32_t, kRounds> w;
  for (size_t begin = 0; begin < padded.size(); begin += kBlock) {
    for (size_t i = 0; i < 16; ++i) w[i] = big_endian(&padded[begin + 4 * i]);
    compress(state, w);
  }
  Sha256 hash;
  for (size_t i = 0; i < hash.size(); ++i) hash[i] = static_cast<uint8_t>(state[i / 4] >> (24 - i % 4 * 8));
  return hash;
}

Sha256 content_hash(std::span<const uint8_t> head, std::span<const uint8_t> content) {
  std::array<Lanes, 8> state;
  for (size_t i = 0; i < state.size(); ++i) state[i] = Lanes{} + kBegin[i];
  chain_at_best(content, state);
  std::vector<uint8_t> rest(head.begin(), head.end());
  const uint64_t length = content.size();
  for (const auto& [from, bytes] : {std::pair<const void*, size_t>(&length, sizeof(length)), {&state, sizeof(state)}}) {
    rest.insert(rest.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + bytes);
  }
  return sha256(rest);
}

}  // namespace volley
