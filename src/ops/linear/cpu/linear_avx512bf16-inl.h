// Shared by the files with the bf16 dot product of AVX-512. They are compiled with flags of their own, so they must
// define no function that the linker could use for another file: everything but their entry points, including this
// header, is in the anonymous namespace, and they call no inline function of another header except the intrinsics.
#pragma once

#include <immintrin.h>

#include "ops/linear/cpu/linear_cpu.h"

namespace volley::ops {
namespace {

// Panels in flight for a number of rows. At 2 vdpbf16ps per cycle of 6 cycles' latency, 12 sums keep the unit busy, and
// 28 are what the registers hold. One row waits for weights alone, which 4 streams read best (8 streams: 13 % slower).
// 8 rows with 2 panels are 9 % faster from memory than with 3, and as fast from a cache. For 16 rows, 1 panel read once
// wins against 8 rows x 3 panels read twice (456 against 375 GMAC/s from memory, level from a cache), though it
// asks for more loads than it has products.
constexpr int panels_in_flight(int rows) {
  return rows <= 4 ? 4 : rows <= 6 ? 3 : rows <= 12 ? 2 : 1;
}

// With few rows the processor itself reads far enough ahead (prefetching costs 4 rows 25 %). With more, the arithmetic
// of a line fills its window, and too few reads are under way: 8 rows gain 20 % from prefetching the next panels, and
// 16 rows went from 141 to 456 GMAC/s.
constexpr int kPrefetchRows = 5;

// Cuts the panels into nearly equal blocks: 9 panels of 4 rows are 3 + 3 + 3, since a block of 1 would wait for its own
// sums. Weights: multiply<kRows, kPanels>(product, weights, sums, next).
template <typename Weights, int kRows>
void multiply_panels(const TileProduct& t) {
  constexpr int kMax = panels_in_flight(kRows), kTwo = kMax < 2 ? kMax : 2, kThree = kMax < 3 ? kMax : 3;
  const int64_t blocks = (t.panels + kMax - 1) / kMax;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = t.panels * b / blocks, end = t.panels * (b + 1) / blocks;
    const char* weights = t.weights + begin * t.panel_bytes;
    const char* next = b + 1 < blocks ? t.weights + end * t.panel_bytes : t.next;
    float* sums = t.sums + begin * kRows * kPanelWidth;
    switch (end - begin) {
      case 1:
        Weights::template multiply<kRows, 1>(t, weights, sums, next);
        break;
      case 2:
        Weights::template multiply<kRows, kTwo>(t, weights, sums, next);
        break;
      case 3:
        Weights::template multiply<kRows, kThree>(t, weights, sums, next);
        break;
      default:
        Weights::template multiply<kRows, kMax>(t, weights, sums, next);
        break;
    }
  }
}

template <typename Weights>
constexpr void (*kMultiplyPanels[kTileRows])(const TileProduct&) = {
    multiply_panels<Weights, 1>,  multiply_panels<Weights, 2>,  multiply_panels<Weights, 3>,
    multiply_panels<Weights, 4>,  multiply_panels<Weights, 5>,  multiply_panels<Weights, 6>,
    multiply_panels<Weights, 7>,  multiply_panels<Weights, 8>,  multiply_panels<Weights, 9>,
    multiply_panels<Weights, 10>, multiply_panels<Weights, 11>, multiply_panels<Weights, 12>,
    multiply_panels<Weights, 13>, multiply_panels<Weights, 14>, multiply_panels<Weights, 15>,
    multiply_panels<Weights, 16>};

template <typename Weights>
void multiply_tile(const TileProduct& product) {
  kMultiplyPanels<Weights>[product.rows - 1](product);
}

}  // namespace
}  // namespace volley::ops
