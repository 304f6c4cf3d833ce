#include "ops/chain/chain.h"

#include <algorithm>
#include <cstring>

#include "ops/chain/chain_kernels.h"
#include "ops/chain/chain_rule.h"

// On the CPU all of this is copies of a few rows: waking the pool would cost more.
namespace volley::ops {
namespace {

void fill_chain_rows_cpu(Stream& stream, const Step& step, int32_t j, const TokenId* previous, const Rows& rows,
                         const PassChoices& choices) {
  if (stream.dry()) return;
  for (int32_t s = 0; s < step.n; ++s) {
    if (step.segments[s].block_index >= 0) chain::fill_row(step, step.segments[s], j, previous, rows, choices);
  }
}

void put_chain_drafts_cpu(Stream& stream, const Step& step, int32_t j, const TokenId* chosen, const float* probability,
                          TokenId* tokens, float* confidence) {
  if (stream.dry()) return;
  for (int32_t s = 0; s < step.n; ++s) {
    chain::put_draft(step.segments[s], j, chosen, probability, tokens, confidence);
  }
}

void copy_widened(const TensorView& from, int64_t row, int64_t width, float* to) {
  if (from.dtype == DType::kF32) {
    std::copy_n(from.as<float>() + row * width, width, to);
  } else {
    std::transform(from.as<BFloat16>() + row * width, from.as<BFloat16>() + (row + 1) * width, to,
                   [](BFloat16 x) { return to_float(x); });
  }
}

void take_previous_cpu(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry, TensorView out) {
  if (stream.dry()) return;
  const int64_t width = out.dim(1);
  for (int32_t r = 0; r < rows.rows; ++r) {
    float* to = out.as<float>() + r * width;
    const chain::Source source = chain::source_of(rows, hidden.data != nullptr, carry, r);
    if (source == chain::Source::kRow) {
      copy_widened(hidden, r - 1, width, to);
    } else if (source == chain::Source::kCarry) {
      copy_widened(carry.hidden, chain::entry(rows, carry, r, chain::value(rows.cache_positions, r) - 1), width, to);
    } else {
      std::fill_n(to, width, 0.0f);
    }
  }
}

void carry_last_cpu(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry) {
  if (stream.dry()) return;
  const auto bytes = static_cast<size_t>(hidden.dim(1)) * dtype_size(hidden.dtype);
  for (int32_t r = 0; r < rows.rows; ++r) {
    if (chain::are_of_one_run(rows, r, r + carry.depth)) continue;
    const int32_t position = chain::value(rows.cache_positions, r);
    const int64_t to = chain::entry(rows, carry, r, position);
    std::memcpy(static_cast<std::byte*>(carry.hidden.data) + static_cast<size_t>(to) * bytes,
                static_cast<const std::byte*>(hidden.data) + static_cast<size_t>(r) * bytes, bytes);
    carry.positions.as<int32_t>()[to] = position;
  }
}

void check_carry(const HiddenCarry& carry) {
  VOLLEY_CHECK(carry.depth > 0 && carry.positions.dtype == DType::kI32);
  VOLLEY_CHECK(carry.hidden.dtype == DType::kF32 || carry.hidden.dtype == DType::kBF16);
  VOLLEY_CHECK_EQ(carry.hidden.dim(0), carry.positions.dim(0));
}

}  // namespace

const ChainKernels ChainKernels::kCpu = {fill_chain_rows_cpu, put_chain_drafts_cpu, take_previous_cpu, carry_last_cpu};

void fill_chain_rows(Stream& stream, const Step& step, int32_t j, const TokenId* previous, const Rows& rows,
                     const PassChoices& choices) {
  VOLLEY_CHECK(j >= 0 && (j == 0 || previous != nullptr));
  if (step.n == 0) return;
  kernels_on<ChainKernels>(stream).fill_chain_rows(stream, step, j, previous, rows, choices);
}

void put_chain_drafts(Stream& stream, const Step& step, int32_t j, const TokenId* chosen, const float* probability,
                      TokenId* tokens, float* confidence) {
  if (step.n == 0) return;
  kernels_on<ChainKernels>(stream).put_chain_drafts(stream, step, j, chosen, probability, tokens, confidence);
}

void take_previous(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry, TensorView out) {
  check_carry(carry);
  VOLLEY_CHECK(out.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(out.dim(0), rows.rows);
  VOLLEY_CHECK_EQ(out.dim(1), carry.hidden.dim(1));
  VOLLEY_CHECK(hidden.data == nullptr || (hidden.dtype == carry.hidden.dtype && hidden.dim(1) == out.dim(1)));
  if (rows.rows == 0) return;
  kernels_on<ChainKernels>(stream).take_previous(stream, rows, hidden, carry, out);
}

void carry_last(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry) {
  check_carry(carry);
  VOLLEY_CHECK(hidden.dtype == carry.hidden.dtype);
  VOLLEY_CHECK_EQ(hidden.dim(1), carry.hidden.dim(1));
  if (rows.rows == 0) return;
  kernels_on<ChainKernels>(stream).carry_last(stream, rows, hidden, carry);
}

}  // namespace volley::ops
