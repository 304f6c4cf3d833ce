// Protects: ranks that divide a layer's experts, over many steps of few rows, in most of which some rank has no work.
// No rank waits for ever. All ranks have the same bits, from run to run and for a row alone or among others. Together
// they equal the whole layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/sanitized.h"
#include "base/threads_for_test.h"
#include "comm/comm.h"
#include "model/ffn/experts_for_test.h"
#include "model/shard.h"

namespace volley::model {
namespace {

constexpr int64_t kHidden = 32;
constexpr int64_t kGroups = kSanitized ? 250 : 2500, kGroupRows = 3, kSteps = kGroups * (1 + kGroupRows);

Decoder decoder() {
  Experts experts;
  experts.router.experts = 8, experts.router.top_k = 2;
  experts.inner = 16;
  experts.by_expert = true;
  return decoder_of(kHidden, experts);
}

struct Answers {
  std::vector<float> together, alone;  // [groups * rows of a group, hidden]
  int64_t idle = 0;                    // steps in which no row chose an expert of the rank
};

// Each group of rows in one step, then row by row.
Answers run(comm::Communicator* group, const std::vector<float>& rows) {
  const int rank = group == nullptr ? 0 : group->rank(), ranks = group == nullptr ? 1 : group->ranks();
  auto device = *make_cpu_device(1);
  if (group != nullptr) VOLLEY_CHECK(group->prepare(*device).ok());
  const std::vector<Param> list = shard(layer_params(decoder(), 0), rank, ranks);
  const auto block = load_experts(*device, shard_of(decoder(), rank, ranks), list, DType::kF32, DType::kF32);
  Arena scratch(*device->allocate(1 << 20));
  Answers answers;
  answers.together.resize(rows.size());
  answers.alone.resize(rows.size());
  std::vector<float> h = rows;
  const auto step = [&](int64_t first, int64_t count, std::vector<float>& to) {
    ops::Rows batch;
    batch.rows = count;
    int64_t touched = 0;
    Pass pass{device->stream(), batch, {}, scratch};
    pass.routing.touched_total = &touched;
    const TensorView in(h.data() + first * kHidden, DType::kF32, {count, kHidden});
    const TensorView x(to.data() + first * kHidden, DType::kF32, {count, kHidden});
    block->run(pass, {in}, {x, group});
    answers.idle += touched == 0 ? 1 : 0;
  };
  for (int64_t g = 0; g < kGroups; ++g) {
    step(g * kGroupRows, kGroupRows, answers.together);
    for (int64_t r = 0; r < kGroupRows; ++r) step(g * kGroupRows + r, 1, answers.alone);
  }
  return answers;
}

std::vector<Answers> run_on(int ranks, const std::vector<float>& rows) {
  comm::Group group = comm::make_cpu_group(ranks);
  std::vector<Answers> answers(static_cast<size_t>(ranks));
  on_threads(ranks, [&](int rank) { answers[rank] = run(group[rank].get(), rows); });
  return answers;
}

TEST(ExpertsOnRanks, IdleRanksChangeNothing) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(kGroups * kGroupRows * kHidden);
  for (float& v : rows) v = normal(random);
  const Answers whole = run(nullptr, rows);
  EXPECT_EQ(whole.idle, 0);
  std::vector<float> last;
  for (const int ranks : {2, 4}) {
    const std::vector<Answers> answers = run_on(ranks, rows);
    int64_t idle = 0;
    for (const Answers& rank : answers) {
      EXPECT_TRUE(rank.together == answers[0].together) << ranks << " ranks differ";
      EXPECT_TRUE(rank.alone == rank.together) << ranks << " ranks: other rows change bits";
      idle += rank.idle;
    }
    EXPECT_GT(idle, kSteps / 4) << ranks << " ranks";
    last = answers[0].together;
    for (size_t begin = 0; begin < rows.size(); begin += kHidden) {
      float most = 0;
      for (size_t i = begin; i < begin + kHidden; ++i) most = std::max(most, std::fabs(whole.together[i]));
      ASSERT_GT(most, 0);
      for (size_t i = begin; i < begin + kHidden; ++i) {
        ASSERT_NEAR(answers[0].together[i], whole.together[i], 1e-6f * most) << ranks << " ranks, value " << i;
      }
    }
  }
  EXPECT_TRUE(run_on(4, rows)[0].together == last) << "from run to run";
}

}  // namespace
}  // namespace volley::model
