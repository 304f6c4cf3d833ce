// Latent attention (MLA: arXiv:2405.04434, section 2.1) in its absorbed form: the operations before and after
// attention. A position keeps a normed latent c of `width` elements, and one rotated key k of `rope` elements; all
// heads share both. With a head's up-projections U (to its keys) and W (to its values)
//   score = q_nope^T (U c) + q_rope^T k = (U^T q_nope)^T c + q_rope^T k,    out = W (sum of p c),
// so attention (ops/attention) runs over the cached rows [c | k], with c as V, and never makes a head's keys and
// values. U^T q_nope and W (…) are products of each head with a matrix of its own, head_linear().
//
// Batch invariance: a row's results depend only on that row. The expanded form, which makes keys and values, has other
// bits; so the number of rows chooses no form.
#pragma once

#include "ops/grouped_linear/grouped_linear.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

struct LatentShape {
  int32_t heads = 0;
  int32_t width = 0;            // of the latent: V
  int32_t rope = 0;             // rotated elements, of each head's q and of the one key
  int32_t nope = 0, value = 0;  // of each head: elements of q that are not rotated, and of its output

  int32_t key() const { return width + rope; }  // elements that a position keeps: K
  int32_t query() const { return nope + rope; }
};

// kUnimplemented for widths without kernels.
Status check_latent(const LatentShape& shape);

// y[r, h, j] = sum over i of x[r, h, i] w_h[j, i], one matrix a head, for the first w.k elements of each head of x and
// the first w.n of each head of y; what follows in y stays. x: [rows, heads, any], bf16 or fp32; y: [rows, heads, any],
// likewise. Sums as linear() has them. w: kPlain. y must not overlap x. rows may be 0.
void head_linear(Stream& stream, const ExpertWeights& w, TensorView x, TensorView y);

// q at rotary position p is multiplied by 1 + factor * ln(1 + floor(p / every)).
struct QueryGrowth {
  float factor = 0;
  int32_t every = 1;
};

// The input of a write, and its destination. w, r: width and rope.
struct LatentWrite {
  TensorView row;   // [rows, w + r] fp32: latent, then key, of each position
  TensorView norm;  // [w] fp32: weight of the latent's RMSNorm
  float eps = 0;
  RopeTables rope;     // of r elements; row and q have them in rotate-half order
  TensorView q;        // [rows, heads, any + r], bf16 or fp32: the last r elements of each head are rotated
  TensorView q_out;    // [rows, heads, w + r], attention_dtype(): gets these as its last r elements
  QueryGrowth growth;  // of all of q_out
  KvLayer kv;          // head_dim w + r, v_in_k w
};

// Writes [normed latent | rotated key] of each row at its cache position, and the rotated part of q. view, the memory
// of tiles and errors: as for write_qkv().
void write_latent(Stream& stream, const Rows& rows, const RowView& view, const LatentWrite& args);

}  // namespace volley::ops
