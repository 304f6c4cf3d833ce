// A gated convolution along a sequence, one short kernel a channel: of a row's in = [b | c | x]
//   g[t] = round(b[t] x[t]),    y[t] = c[t] * sum over o < taps of kernel[taps - 1 - o] g[t - o],
// where g is 0 before the sequence. A position's g is kept in the pages of a cache group whose window is `taps`, so
// that rejected rows, prefixes and preemption are what they are for windows of attention.
//
// Batch invariance: g is rounded to the cache's type before any row reads it, from the pages or from the same pass.
// Sums are fp32, in the order of o.
#pragma once

#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

struct ShortConv {
  TensorView in;      // [rows, 3 * channels] fp32
  TensorView kernel;  // [channels * taps] fp32, a channel's taps in turn, the row's own last
  KvLayer kv;         // one head of `channels` elements, all of them V (v_in_k), bf16 or fp32
  TensorView y;       // [rows, channels], bf16 or fp32
};

// Writes g of each row at its cache position, and y. view: the cache group of kv; only its page table is read. As for
// write_qkv() the CPU reads the rows' segments and CUDA their slots, and positions must have pages.
void short_conv(Stream& stream, const Rows& rows, const RowView& view, const ShortConv& args);

}  // namespace volley::ops
