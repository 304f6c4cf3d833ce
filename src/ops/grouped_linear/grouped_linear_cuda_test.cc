// Protects, on a GPU: the tests of grouped_linear_test.cc, which is built into the same program; the portable kernel;
// that tiles of both sizes and both generations' kernels give the same bits; that experts of 4-bit codes give the bits
// of the bf16 weights that they stand for; that a recorded product uses the routing present when it runs. The layout is
// checked without a GPU.
#include "ops/grouped_linear/grouped_linear_cuda.h"

#include <set>

#include "ops/grouped_linear/grouped_linear_testing.h"

namespace volley::ops {
namespace {

struct Product {
  LinearLayout layout;
  GroupedRows rows;
  DType y;
};
constexpr Product kIn{LinearLayout::kGateUp, GroupedRows::kIn, kBF16};
constexpr Product kOut{LinearLayout::kPlain, GroupedRows::kOut, kF32};

std::vector<float> x_of(const Product& p, const TestRouting& routing, int64_t k) {
  return rounded(normal_values((p.rows == GroupedRows::kIn ? routing.rows : routing.entries()) * k, 5), kBF16);
}

// On a GPU without wgmma both are the portable kernel.
TEST(GroupedLinearCuda, PortableKernelGivesTheSameBits) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const Product& p : {kIn, kOut}) {
    Experts w(device, 16, 1000, 520, kBF16, p.layout);
    for (int64_t rows : {1, 8, 40, 300}) {
      for (int32_t favoured : {0, 4}) {
        const TestRouting routing(device, 16, 4, rows, favoured);
        const std::vector<float> x = x_of(p, routing, w.k);
        w.packed.portable = false;
        const auto want = grouped_for_test(device, w, x, kBF16, routing.routing(), p.y, p.rows);
        const BiasedEnd biased(device, w, rows == 8 ? EndKind::kGeGlu : EndKind::kClampedSwiGlu);
        const auto want_biased = grouped_for_test(device, w, x, kBF16, routing.routing(), p.y, p.rows, biased.end);
        w.packed.portable = true;
        ASSERT_EQ(grouped_for_test(device, w, x, kBF16, routing.routing(), p.y, p.rows), want) << rows;
        ASSERT_EQ(grouped_for_test(device, w, x, kBF16, routing.routing(), p.y, p.rows, biased.end), want_biased);
      }
    }
  }
}

TEST(GroupedLinearCuda, CodesGiveTheBitsOfTheWidenedWeights) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format :
       {kMxfp4Weights, WeightFormat(DType::kI4, 1, 128, true), kInt4Minimums, kInt6Weights, kInt8Minimums}) {
    for (const Product& p : {kIn, kOut}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1000, 520}, {74, 77}}) {
        Experts codes(device, 16, n, k, kBF16, p.layout), plain(device, 16, n, k, kBF16, p.layout);
        codes.packed.format = format;
        const std::vector<WeightRows> values = coded_parts(codes.packed, true);
        plain.packed = std::move(pack_experts(device, values, 16, k, kBF16, p.layout)).value();
        codes.packed =
            std::move(pack_experts(device, coded_parts(codes.packed, false), 16, k, format, p.layout)).value();
        for (int64_t rows : {1, 8, 40, 300}) {
          for (int32_t favoured : {0, 4}) {
            SCOPED_TRACE(testing::Message() << format_name(format) << " n " << n << " rows " << rows);
            const TestRouting routing(device, 16, 4, rows, favoured);
            const std::vector<float> x = x_of(p, routing, k);
            const BiasedEnd biased(device, plain);
            const auto want = grouped_for_test(device, plain, x, kBF16, routing.routing(), p.y, p.rows, biased.end);
            for (bool portable : {false, true}) {
              codes.packed.portable = portable;
              ASSERT_EQ(grouped_for_test(device, codes, x, kBF16, routing.routing(), p.y, p.rows, biased.end), want)
                  << (portable ? "portable" : "");
            }
          }
        }
      }
    }
  }
}

// An expert with the same row alone and with 500 others: few and many rows a tile, and every N of the instruction.
TEST(GroupedLinearCuda, AnExpertsRowsDoNotSeeOneAnother) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const Product& p : {kIn, kOut}) {
    const int64_t k = 776, n = 512, outputs = p.layout == LinearLayout::kGateUp ? n / 2 : n;
    const Experts w(device, 4, n, k, kBF16, p.layout);
    const TestRouting all(device, 4, 1, 501, 1);  // expert 0 gets all
    const std::vector<float> x = x_of(p, all, k);
    const size_t row_bytes = outputs * dtype_size(p.y);
    const auto want = grouped_for_test(device, w, x, kBF16, all.routing(), p.y, p.rows);
    for (int64_t rows = 1; rows <= 500; rows += rows < 34 ? 1 : 29) {
      const int64_t begin = 501 - rows;
      const TestRouting some(device, 4, 1, rows, 1);
      const std::vector<float> part(x.begin() + begin * k, x.end());
      const auto y = grouped_for_test(device, w, part, kBF16, some.routing(), p.y, p.rows);
      ASSERT_EQ(std::memcmp(y.data(), &want[begin * row_bytes], y.size()), 0) << rows;
    }
  }
}

// Both products in one kernel, whose counters each routing makes zero again.
TEST(GroupedLinearCuda, GraphServesWhatTheRoutingIs) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 24, hidden = 512, inner = 256;
  const Experts gate_up(device, 32, 2 * inner, hidden, kBF16, LinearLayout::kGateUp);
  const Experts down(device, 32, hidden, inner, kBF16, LinearLayout::kPlain);
  ExpertsWorld world{device, gate_up, down, rows};
  const auto enqueue = [&] { world.enqueue(true); };
  const std::vector<float> zeros(rows * hidden);
  const auto upload = [&](const std::vector<float>& logits) {
    device.upload(world.router.call().logits.data, logits.data(), logits.size() * sizeof(float));
    device.upload(world.y.view(kF32, {rows, hidden}).data, zeros.data(), zeros.size() * sizeof(float));
  };
  const auto graph = device.record(enqueue);
  std::set<std::vector<float>> different;
  for (uint32_t seed : {1, 2, 3}) {
    const std::vector<float> logits = normal_values(rows * 32, seed);
    upload(logits);
    enqueue();
    const std::vector<float> want = world.y.read<float>();
    for (int i = 0; i < 3; ++i) {
      upload(logits);
      graph->launch();
      ASSERT_EQ(world.y.read<float>(), want) << seed;
    }
    different.insert(want);
  }
  EXPECT_EQ(different.size(), 3u);
}

// Both products of experts of codes in one kernel give the bits of each product with the widened weights.
void check_codes_in_one_kernel(Device& device, const WeightFormat& format, int64_t hidden, int64_t inner) {
  constexpr int64_t kExperts = 16;
  const auto weights = [&](int64_t n, int64_t k, LinearLayout layout, bool as_codes) {
    Experts w(device, kExperts, n, k, kBF16, layout);
    w.packed.format = format;
    const std::vector<WeightRows> parts = coded_parts(w.packed, !as_codes);
    w.packed =
        std::move(pack_experts(device, parts, kExperts, k, as_codes ? format : WeightFormat(kBF16), layout)).value();
    return w;
  };
  const Experts gate_up = weights(2 * inner, hidden, LinearLayout::kGateUp, true);
  const Experts down = weights(hidden, inner, LinearLayout::kPlain, true);
  const Experts plain_gate_up = weights(2 * inner, hidden, LinearLayout::kGateUp, false);
  const Experts plain_down = weights(hidden, inner, LinearLayout::kPlain, false);
  const DeviceTensor gate_up_bias(device, normal_values(kExperts * 2 * inner, 6)),
      down_bias(device, normal_values(kExperts * hidden, 7));
  for (int64_t rows : {1, 7, 16, 40, 128}) {
    SCOPED_TRACE(testing::Message() << format_name(format) << ", hidden " << hidden << ", " << rows << " rows");
    const End end = {.kind = EndKind::kClampedSwiGlu,
                     .bias = gate_up_bias.view(kF32, {kExperts, 2 * inner}),
                     .clamp = {1.702f, 7.0f}};
    const End down_end = {.bias = down_bias.view(kF32, {kExperts, hidden})};
    const std::vector<float> want = run_experts(device, plain_gate_up, plain_down, rows, false, end, down_end);
    ASSERT_EQ(run_experts(device, gate_up, down, rows, true, end, down_end), want);
    ASSERT_EQ(run_experts(device, gate_up, down, rows, false, end, down_end), want);
  }
}

// Few panels: tiles of one or two. 31 panels of gate and up, or of down: with 16 rows tiles of four, the last of three.
TEST(GroupedLinearCuda, CodesInOneKernelGiveTheBitsOfTheWidenedWeights) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : {kMxfp4Weights, kNvfp4Weights, kInt4Weights, WeightFormat(DType::kI4, 1, 128, true),
                                     kInt4Minimums, kInt8Weights, kInt6Weights, kInt6Minimums, kInt8Minimums}) {
    for (const auto& [hidden, inner] : {std::pair<int64_t, int64_t>{520, 200}, {136, 984}, {1960, 72}}) {
      check_codes_in_one_kernel(device, format, hidden, inner);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Every row of a panel holds one row of the matrix.
TEST(GroupedLinearCudaLayout, RowsHaveAPlaceOfTheirOwn) {
  std::set<int64_t> plain, pairs;
  for (int64_t row = 0; row < 128; ++row) {
    plain.insert(grouped_cuda_row(row, 0, LinearLayout::kPlain));
    pairs.insert(grouped_cuda_row(row / 2, static_cast<int>(row % 2), LinearLayout::kGateUp));
  }
  for (const auto& rows : {plain, pairs}) {
    EXPECT_EQ(rows.size(), 128u);
    EXPECT_EQ(*rows.begin(), 0);
    EXPECT_EQ(*rows.rbegin(), 127);
  }
  EXPECT_EQ(grouped_cuda_panels(1536, LinearLayout::kGateUp), 24);
  EXPECT_EQ(grouped_cuda_panels(2048, LinearLayout::kPlain), 32);
  EXPECT_EQ(grouped_cuda_panels(74, LinearLayout::kGateUp), 2);
}

TEST(GroupedLinearCudaPlan, ChoosesTheKernel) {
  ExpertWeights w;
  w.n = w.k = 64;
  EXPECT_EQ(grouped_cuda_kernel({.compute_capability = 90}, w, kF32), LinearKernel::kPlain);
  EXPECT_EQ(grouped_cuda_kernel({.compute_capability = 80}, w, kBF16), LinearKernel::kPortable);
  w.portable = true;
  EXPECT_EQ(grouped_cuda_kernel({.compute_capability = 90}, w, kBF16), LinearKernel::kPortable);
  EXPECT_EQ(grouped_tile_size(16 * 8, 128), GroupedTileSize::kFewRows);
  EXPECT_EQ(grouped_tile_size(2048 * 8, 128), GroupedTileSize::kManyRows);
}

}  // namespace
}  // namespace volley::ops
