// Philox4x32-10, logarithm, Gumbel noise and exponential on vectors; included once per instruction set by
// choice_cpu.cc. Contracts are in kernels.h.

#if defined(VOLLEY_OPS_CHOICE_NOISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLLEY_OPS_CHOICE_NOISE_INL_H_
#undef VOLLEY_OPS_CHOICE_NOISE_INL_H_
#else
#define VOLLEY_OPS_CHOICE_NOISE_INL_H_
#endif

#include <hwy/highway.h>

#include "ops/choice/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace volley::ops::choice::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using DU64 = hn::RepartitionToWide<DU>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VU64 = hn::Vec<DU64>;

// Blocks first, first + 1, …, one a 64-bit lane: stores 4 * Lanes(DU64()) words in the order of the blocks.
HWY_INLINE void philox_batch(const PhiloxKey& key, uint32_t first, uint32_t* HWY_RESTRICT words) {
  const DU64 d64;
  const DU d32;
  const auto mul0 = hn::Set(d32, 0xD2511F53u);
  const auto mul1 = hn::Set(d32, 0xCD9E8D57u);
  const VU64 bump0 = hn::Set(d64, uint64_t{0x9E3779B9u});
  const VU64 bump1 = hn::Set(d64, uint64_t{0xBB67AE85u});
  VU64 k0 = hn::Set(d64, uint64_t{key.key[0]});
  VU64 k1 = hn::Set(d64, uint64_t{key.key[1]});
  // Only the lower halves of the lanes count. The upper ones fill with leftovers that MulEven does not read.
  VU64 c0 = hn::Add(hn::Iota(d64, uint64_t{0}), hn::Set(d64, uint64_t{first}));
  VU64 c1 = hn::Set(d64, uint64_t{key.counter[0]});
  VU64 c2 = hn::Set(d64, uint64_t{key.counter[1]});
  VU64 c3 = hn::Set(d64, uint64_t{key.counter[2]});
  for (int round = 0; round < 10; ++round) {
    const VU64 p0 = hn::MulEven(hn::BitCast(d32, c0), mul0);
    const VU64 p1 = hn::MulEven(hn::BitCast(d32, c2), mul1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), k0);
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), k1);
    c1 = p1;
    c3 = p0;
    k0 = hn::Add(k0, bump0);
    k1 = hn::Add(k1, bump1);
  }
  const VU64 low = hn::BitCast(d64, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c1)), hn::BitCast(d32, c0)));
  const VU64 high = hn::BitCast(d64, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c3)), hn::BitCast(d32, c2)));
  hn::StoreInterleaved2(low, high, d64, reinterpret_cast<uint64_t*>(words));
}

// log(1 + f) + e * log 2 for 1 + f in [sqrt(1/2), sqrt(2)). With r = f / (2 + f), log(1 + f) = 2 artanh(r); the series
// is cut after r^9, 2e-9 of the value. Relative precision holds for tiny f.
HWY_INLINE VF log_sum(VF f, VF e) {
  const DF d;
  const VF r = hn::Div(f, hn::Add(hn::Set(d, 2.0f), f));
  const VF s = hn::Mul(r, r);
  VF p = hn::Add(hn::Mul(s, hn::Set(d, 1.0f / 9)), hn::Set(d, 1.0f / 7));
  p = hn::Add(hn::Mul(s, p), hn::Set(d, 1.0f / 5));
  p = hn::Add(hn::Mul(s, p), hn::Set(d, 1.0f / 3));
  const VF r2 = hn::Add(r, r);
  const VF tail = hn::Add(hn::Mul(hn::Mul(s, p), r2), hn::Mul(e, hn::Set(d, 3.19461849e-5f)));
  return hn::Add(hn::Mul(e, hn::Set(d, 0.693115234375f)), hn::Add(r2, tail));  // log 2 in 12 bits and the rest
}

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)), for positive normal x.
HWY_INLINE void split(VF x, VF& m, VF& e) {
  const DF d;
  const DI di;
  const auto bits = hn::BitCast(di, x);
  const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));  // the bits of sqrt(1/2)
  m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  e = hn::ConvertTo(d, exponent);
}

// (x + 0.5) / 2^32, rounded once.
HWY_INLINE VF unit(VU x) {
  const DF d;
  const DI di;
  const VF high = hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<16>(x)));
  const VF low = hn::ConvertTo(d, hn::BitCast(di, hn::And(x, hn::Set(DU(), 0xffffu))));
  const VF rest = hn::Add(hn::Mul(low, hn::Set(d, 0x1p-32f)), hn::Set(d, 0x1p-33f));
  return hn::Add(hn::Mul(high, hn::Set(d, 0x1p-16f)), rest);
}

HWY_INLINE VF gumbel_of(VU x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  VF m, e;
  split(unit(x), m, e);
  const VF complement = hn::Neg(unit(hn::Not(x)));
  const VF f = hn::IfThenElse(hn::Eq(e, hn::Zero(d)), complement, hn::Sub(m, one));
  const VF exponential = hn::Neg(log_sum(f, e));
  split(exponential, m, e);
  return hn::Neg(log_sum(hn::Sub(m, one), e));
}

// round(2^34 * exp(x)) for x <= 0; 0 below -kWindow. exp is 2^n * exp(r) with |r| <= log(2) / 2, and Taylor's series to
// r^7, 5e-9 of the value.
HWY_INLINE VF weight_of(VF x) {
  const DF d;
  const DI di;
  const VF clamped = hn::Max(x, hn::Set(d, -kWindow));
  const VF n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  VF r = hn::Sub(clamped, hn::Mul(n, hn::Set(d, 0.693115234375f)));
  r = hn::Sub(r, hn::Mul(n, hn::Set(d, 3.19461849e-5f)));
  VF p = hn::Add(hn::Mul(r, hn::Set(d, 1.0f / 5040)), hn::Set(d, 1.0f / 720));
  p = hn::Add(hn::Mul(r, p), hn::Set(d, 1.0f / 120));
  p = hn::Add(hn::Mul(r, p), hn::Set(d, 1.0f / 24));
  p = hn::Add(hn::Mul(r, p), hn::Set(d, 1.0f / 6));
  p = hn::Add(hn::Mul(r, p), hn::Set(d, 0.5f));
  p = hn::Add(hn::Mul(hn::Mul(r, r), p), r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  // 2^n and 2^34 in one factor; a float above 2^23 is whole already, and Round leaves it.
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127 + 34)));
  return hn::Round(hn::Mul(p, hn::BitCast(d, power)));
}

}  // namespace volley::ops::choice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
