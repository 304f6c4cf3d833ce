// Rounding of fp32 vectors to bf16, for kernels that Highway compiles once per instruction set (its own conversion
// truncates). Included once per target: the guard is Highway's toggle, not a pragma.
#if defined(VOLLEY_OPS_CPU_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLLEY_OPS_CPU_BF16_INL_H_
#undef VOLLEY_OPS_CPU_BF16_INL_H_
#else
#define VOLLEY_OPS_CPU_BF16_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The bf16 nearest to each lane, ties to even, in the upper half of its word; the lower half is zero, so the word read
// as fp32 is the rounded value. NaN stays NaN.
template <class D>
hn::Vec<hn::RebindToUnsigned<D>> bf16_words(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto word = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
  return hn::And(word, hn::Set(du, 0xffff0000u));
}

// Stores Lanes(d) values as bf16.
template <class D>
void store_bf16(D d, hn::Vec<D> x, uint16_t* to) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const auto low = hn::BitCast(di, hn::ShiftRight<16>(bf16_words(d, x)));
  hn::StoreU(hn::DemoteTo(d16, low), d16, to);
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
