// Protects: the rows and columns of each tensor that a rank has, against lists made by hand; every value belongs to a
// rank; sizes that do not divide are refused with a number of ranks that would work.
#include "model/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace volley::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> range(int64_t first, int64_t n, int64_t step = 1) {
  std::vector<int64_t> list(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) list[static_cast<size_t>(i)] = first + i * step;
  return list;
}

std::vector<int64_t> joined(std::vector<std::vector<int64_t>> lists) {
  std::vector<int64_t> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// The checkpoint's rows (of a vector: elements) that a part loads, in its order.
std::vector<int64_t> rows_of(const Param::Part& part) {
  if (part.ranges.empty()) return range(part.first, part.rows, part.step);
  std::vector<int64_t> rows;
  for (const auto& [first, n] : part.ranges) rows = joined({rows, range(first, n, part.step)});
  EXPECT_EQ(std::ssize(rows), part.rows);
  return rows;
}

const Param& role(const std::vector<Param>& list, const std::string& name) {
  for (const Param& param : list) {
    if (param.role == name) return param;
  }
  VOLLEY_CHECK_MSG(false, name);
}

Decoder decoder_of(Mixer mixer, Ffn ffn) {
  Decoder decoder;
  decoder.hidden = 8;
  decoder.vocab = 300;
  decoder.layers = {{std::move(mixer), std::move(ffn)}};
  return decoder;
}

Attention attention(int32_t heads, int32_t kv_heads) {
  Attention a;
  a.heads = heads, a.kv_heads = kv_heads, a.head_dim = 2;
  return a;
}

std::vector<Param> on_rank(const Decoder& decoder, int rank, int ranks) {
  return shard(params(decoder), rank, ranks);
}

TEST(Shard, DividesHeads) {
  Attention a = attention(4, 2);
  a.bias = a.o_bias = a.sinks = a.qk_norm = true;
  const Decoder decoder = decoder_of(a, Dense{12});
  const auto list = on_rank(decoder, 1, 2);
  for (const char* name : {"layers.0.qkv", "layers.0.qkv_bias"}) {
    const Param& qkv = role(list, name);
    EXPECT_THAT(rows_of(qkv.parts[0]), ElementsAre(4, 5, 6, 7)) << name;
    EXPECT_THAT(rows_of(qkv.parts[1]), ElementsAre(2, 3)) << name;
    EXPECT_THAT(rows_of(qkv.parts[2]), ElementsAre(2, 3)) << name;
  }
  const Param& qkv = role(list, "layers.0.qkv");
  EXPECT_EQ(qkv.stored_shape(qkv.parts[0]), (std::vector<int64_t>{8, 8})) << "the checkpoint's, not the rank's";
  EXPECT_EQ(qkv.rows(), 8);
  const Param& o = role(list, "layers.0.o");
  EXPECT_EQ(o.columns, 4);
  EXPECT_EQ(o.first_column, 4);
  EXPECT_TRUE(o.cuts_columns());
  EXPECT_EQ(o.stored_shape(o.parts[0]), (std::vector<int64_t>{8, 8}));
  EXPECT_THAT(rows_of(role(list, "layers.0.sinks").parts[0]), ElementsAre(2, 3));
  for (const char* name : {"layers.0.q_norm", "layers.0.o_bias", "layers.0.input_norm", "norm", "embedding"}) {
    EXPECT_EQ(role(list, name).elements(), role(params(decoder), name).elements()) << name << " is whole";
  }
}

TEST(Shard, SharesKvHeadsBeyondTheirNumber) {
  for (int rank = 0; rank < 4; ++rank) {
    const auto list = on_rank(decoder_of(attention(8, 2), Dense{12}), rank, 4);
    const Param& qkv = role(list, "layers.0.qkv");
    EXPECT_EQ(rows_of(qkv.parts[0]), range(4 * rank, 4));
    EXPECT_EQ(rows_of(qkv.parts[1]), range(rank / 2 * 2, 2)) << "rank " << rank;
  }
  const Decoder shard = shard_of(decoder_of(attention(8, 2), Dense{12}), 3, 4);
  EXPECT_EQ(shard.attention(0)->heads, 2);
  EXPECT_EQ(shard.attention(0)->kv_heads, 1);
  EXPECT_EQ(std::get<Dense>(shard.layers[0].ffn).inner, 3);
  EXPECT_EQ(shard.hidden, 8);
  EXPECT_EQ(shard.vocab, 300);
}

// q_proj holds a head's q, then its gate.
TEST(Shard, DividesGatesWithTheirHeads) {
  Attention a = attention(4, 4);
  a.gate = true;
  const auto list = on_rank(decoder_of(a, Dense{12}), 1, 2);
  const Param& qkv = role(list, "layers.0.qkv");
  EXPECT_THAT(rows_of(qkv.parts[0]), ElementsAre(8, 9, 12, 13));
  EXPECT_THAT(rows_of(qkv.parts[3]), ElementsAre(10, 11, 14, 15));
  EXPECT_EQ(qkv.stored_shape(qkv.parts[3]), (std::vector<int64_t>{16, 8}));
}

// Elements of a head that rotate lie in another order than the checkpoint's.
TEST(Shard, KeepsTheOrderInsideAHead) {
  Attention a = attention(2, 2);
  a.head_dim = 8;
  Decoder decoder = decoder_of(a, Dense{12});
  RopeSpec rope;
  rope.dim = 8, rope.rotated = 4;
  decoder.ropes = {rope};
  const Param whole = role(params(decoder), "layers.0.qkv");
  for (const int rank : {0, 1}) {
    const auto list = on_rank(decoder, rank, 2);
    for (const int part : {0, 1}) {
      const auto all = rows_of(whole.parts[part]);
      EXPECT_EQ(rows_of(role(list, "layers.0.qkv").parts[part]),
                std::vector<int64_t>(all.begin() + 8 * rank, all.begin() + 8 * rank + 8));
    }
  }
}

TEST(Shard, DividesInnerWidths) {
  const auto list = on_rank(decoder_of(attention(4, 4), Dense{12}), 2, 4);
  for (const int part : {0, 1}) EXPECT_THAT(rows_of(role(list, "layers.0.gate_up").parts[part]), ElementsAre(6, 7, 8));
  EXPECT_EQ(role(list, "layers.0.down").first_column, 6);
  EXPECT_EQ(role(list, "layers.0.down").columns, 3);
}

TEST(Shard, DividesEveryExpert) {
  Experts experts;
  experts.router.experts = 3, experts.router.top_k = 1;
  experts.inner = 4, experts.shared_inner = 6;
  const auto list = on_rank(decoder_of(attention(2, 2), experts), 1, 2);
  EXPECT_EQ(role(list, "layers.0.router").rows(), 3);
  EXPECT_EQ(role(list, "layers.0.experts_gate_up").experts(), 3);
  for (const auto& part : role(list, "layers.0.experts_gate_up").parts) EXPECT_THAT(rows_of(part), ElementsAre(2, 3));
  EXPECT_EQ(role(list, "layers.0.experts_down").first_column, 2);
  EXPECT_EQ(role(list, "layers.0.shared_gate").rows(), 1);
  EXPECT_THAT(rows_of(role(list, "layers.0.shared_gate_up").parts[1]), ElementsAre(3, 4, 5));
  EXPECT_EQ(role(list, "layers.0.shared_down").columns, 3);
}

// Gate and up in turn, in the rows of one tensor or in its columns.
TEST(Shard, DividesInterleavedExperts) {
  Experts experts;
  experts.router.experts = 2, experts.router.top_k = 1;
  experts.inner = 4;
  experts.interleaved = experts.bias = true;
  for (const bool transposed : {false, true}) {
    experts.transposed = transposed;
    const auto list = on_rank(decoder_of(attention(2, 2), experts), 1, 2);
    const Param& gate_up = role(list, "layers.0.experts_gate_up");
    EXPECT_THAT(rows_of(gate_up.parts[0]), ElementsAre(4, 6));
    EXPECT_THAT(rows_of(gate_up.parts[1]), ElementsAre(5, 7));
    const Param& down = role(list, "layers.0.experts_down");
    EXPECT_EQ(down.first_column, 2);
    EXPECT_TRUE(down.cuts_columns());
    EXPECT_FALSE(gate_up.cuts_columns());
    const Param& bias = role(list, "layers.0.experts_gate_up_bias");
    EXPECT_THAT(rows_of(bias.parts[2]), ElementsAre(12, 14)) << "gates of expert 1";
    EXPECT_THAT(rows_of(bias.parts[3]), ElementsAre(13, 15));
    EXPECT_EQ(role(list, "layers.0.experts_down_bias").rows(), 16) << "one rank adds it";
  }
}

// Whole experts, in order, with their biases; in the form of every family.
TEST(Shard, DividesExpertsAmongRanks) {
  Experts experts;
  experts.router.experts = 6, experts.router.top_k = 2;
  experts.inner = 5, experts.shared_inner = 6;  // five experts cannot be divided
  experts.by_expert = true;
  const Decoder apart = decoder_of(attention(2, 2), experts);
  for (const int rank : {0, 1}) {
    const auto list = on_rank(apart, rank, 2);
    const Param& gate_up = role(list, "layers.0.experts_gate_up");
    ASSERT_EQ(gate_up.experts(), 3);
    EXPECT_EQ(gate_up.rows(), 30);
    EXPECT_EQ(gate_up.parts[0].name, "layers.0.mlp.experts." + std::to_string(3 * rank) + ".gate_proj.weight");
    EXPECT_EQ(gate_up.parts[5].name, "layers.0.mlp.experts." + std::to_string(3 * rank + 2) + ".up_proj.weight");
    const Param& down = role(list, "layers.0.experts_down");
    ASSERT_EQ(down.experts(), 3);
    EXPECT_EQ(down.parts[1].name, "layers.0.mlp.experts." + std::to_string(3 * rank + 1) + ".down_proj.weight");
    for (const Param* param : {&gate_up, &down}) {
      EXPECT_FALSE(param->cuts_columns());
      for (const Param::Part& part : param->parts) EXPECT_EQ(rows_of(part), range(0, param == &down ? 8 : 5));
    }
    EXPECT_EQ(role(list, "layers.0.router").rows(), 6) << "whole";
    EXPECT_EQ(role(list, "layers.0.shared_down").columns, 3) << "by width";
    const Decoder shard = shard_of(apart, rank, 2);
    const Experts* own = shard.experts(0);
    EXPECT_EQ(own->inner, 5);
    EXPECT_EQ(own->shared_inner, 3);
    EXPECT_EQ(own->router.experts, 6);
    EXPECT_EQ(own->router.own_first, 3 * rank);
    EXPECT_EQ(own->router.own(), 3);
  }
  experts.interleaved = experts.bias = true;
  for (const bool transposed : {false, true}) {
    experts.transposed = transposed;
    const auto list = on_rank(decoder_of(attention(2, 2), experts), 1, 2);
    const Param& gate_up = role(list, "layers.0.experts_gate_up");
    EXPECT_THAT(rows_of(gate_up.parts[1]), ElementsAre(1, 3, 5, 7, 9));
    EXPECT_EQ(gate_up.parts[1].name, "layers.0.mlp.experts.3.gate_up_proj.weight");
    EXPECT_EQ(gate_up.parts[1].transposed, transposed);
    EXPECT_EQ(gate_up.stored_shape(gate_up.parts[1]),
              transposed ? (std::vector<int64_t>{8, 10}) : (std::vector<int64_t>{10, 8}));
    const Param& bias = role(list, "layers.0.experts_gate_up_bias");
    EXPECT_EQ(bias.rows(), 30);
    EXPECT_THAT(rows_of(bias.parts[1]), ElementsAre(31, 33, 35, 37, 39)) << "ups of expert 3";
    const Param& down_bias = role(list, "layers.0.experts_down_bias");
    EXPECT_EQ(rows_of(down_bias.parts[0]), range(24, 24)) << "each adds those of its experts";
    EXPECT_EQ(down_bias.stored_shape(down_bias.parts[0]), (std::vector<int64_t>{6, 8}));
  }
}

TEST(Shard, DividesRecurrentHeads) {
  const GatedDelta delta{{2, 4, 16, 16, 4}};
  const Decoder decoder = decoder_of(delta, Dense{12});
  const auto list = on_rank(decoder, 1, 2);
  const Param& in = role(list, "layers.0.delta_in");
  EXPECT_EQ(rows_of(in.parts[0]), joined({range(16, 16), range(48, 16), range(96, 32)})) << "q, k and v";
  EXPECT_EQ(rows_of(in.parts[1]), range(32, 32)) << "z";
  EXPECT_THAT(rows_of(role(list, "layers.0.delta_gates").parts[0]), ElementsAre(2, 3));
  EXPECT_EQ(rows_of(role(list, "layers.0.delta_conv").parts[0]),
            joined({range(64, 64), range(192, 64), range(384, 128)}));
  EXPECT_THAT(rows_of(role(list, "layers.0.delta_a_log").parts[0]), ElementsAre(2, 3));
  EXPECT_EQ(role(list, "layers.0.delta_norm").rows(), 16);
  EXPECT_EQ(role(list, "layers.0.delta_out").first_column, 32);
  // Four ranks share two key heads.
  const auto shared = on_rank(decoder, 3, 4);
  EXPECT_EQ(rows_of(role(shared, "layers.0.delta_in").parts[0]),
            joined({range(16, 16), range(48, 16), range(112, 16)}));
  const Decoder shard = shard_of(decoder, 3, 4);
  EXPECT_EQ(shard.delta(0)->shape.k_heads, 1);
  EXPECT_EQ(shard.delta(0)->shape.v_heads, 1);
}

// A key head brings its rows of q, k, v and z, and of b and a.
TEST(Shard, DividesRecurrentHeadsThatLieByKeyHead) {
  const Decoder decoder = decoder_of(GatedDelta{{2, 4, 16, 16, 4}, true}, Dense{12});
  const auto list = on_rank(decoder, 1, 2);
  EXPECT_EQ(rows_of(role(list, "layers.0.delta_in").parts[0]), range(96, 96)) << "all of key head 1";
  EXPECT_THAT(rows_of(role(list, "layers.0.delta_gates").parts[0]), ElementsAre(4, 5, 6, 7));
  const auto shared = on_rank(decoder, 3, 4);  // its second v head
  EXPECT_EQ(rows_of(role(shared, "layers.0.delta_in").parts[0]),
            joined({range(96, 16), range(112, 16), range(144, 16), range(176, 16)}));
  EXPECT_THAT(rows_of(role(shared, "layers.0.delta_gates").parts[0]), ElementsAre(5, 7));
}

TEST(Shard, DividesTheHeadByGroupsOfTokens) {
  using Part = std::pair<int64_t, int64_t>;
  EXPECT_EQ(vocabulary_part(300, 0, 2), Part(0, 192));
  EXPECT_EQ(vocabulary_part(300, 1, 2), Part(192, 108));
  EXPECT_EQ(vocabulary_part(300, 3, 4), Part(300, 0)) << "there are 5 groups of 64";
  EXPECT_EQ(vocabulary_part(151936, 3, 4), Part(114048, 37888));
  const auto list = on_rank(decoder_of(attention(2, 2), Dense{12}), 1, 2);
  EXPECT_EQ(rows_of(role(list, "head").parts[0]), range(192, 108));
  EXPECT_EQ(role(list, "embedding").rows(), 300);
}

// Together the ranks have every value of the whole model, and none twice except those that they share.
TEST(Shard, LeavesNothingOut) {
  Experts experts;
  experts.router.experts = 3, experts.router.top_k = 1;
  experts.inner = 8, experts.shared_inner = 4;
  Experts whole_experts = experts;
  whole_experts.router.experts = 8;
  whole_experts.by_expert = true;
  Experts interleaved = whole_experts;
  interleaved.interleaved = interleaved.bias = true;
  Attention gated = attention(8, 4);
  gated.gate = gated.bias = gated.sinks = true;
  const Latent latent = {{.heads = 8, .width = 16, .rope = 16, .nope = 6, .value = 10}, 12};
  for (const Mixer& mixer : {Mixer(gated), Mixer(latent), Mixer(GatedDelta{{4, 8, 16, 16, 4}}),
                             Mixer(GatedDelta{{4, 8, 16, 16, 4}, true})}) {
    for (const Ffn& ffn : {Ffn(Dense{16}), Ffn(experts), Ffn(whole_experts), Ffn(interleaved)}) {
      const Decoder decoder = decoder_of(mixer, ffn);
      const std::vector<Param> whole = params(decoder);
      std::map<std::string, std::map<std::pair<int64_t, int64_t>, int>> had;  // ranks that have each value of a tensor
      for (int rank = 0; rank < 4; ++rank) {
        const std::vector<Param> list = shard(whole, rank, 4);
        ASSERT_EQ(list.size(), whole.size());
        for (const Param& param : list) {
          for (const Param::Part& part : param.parts) {
            for (const int64_t row : rows_of(part)) {
              for (int64_t c = 0; c < std::max<int64_t>(1, param.columns); ++c) {
                ++had[param.role + " " + part.name][{row, param.first_column + part.first_column + c}];
              }
            }
          }
        }
      }
      for (const Param& param : whole) {
        for (const Param::Part& part : param.parts) {
          const auto& values = had[param.role + " " + part.name];
          const bool whole_part = part.split == Split::kNone;
          int64_t wanted = 0;  // values wanted of this tensor in this role, as several parts may have one
          for (const Param::Part& other : param.parts) {
            if (other.name == part.name) wanted += other.rows * std::max<int64_t>(1, param.columns);
          }
          EXPECT_EQ(std::ssize(values), wanted) << param.role << " " << part.name;
          for (const auto& [at, times] : values) ASSERT_EQ(times, whole_part ? 4 : 1) << param.role << " " << part.name;
        }
      }
    }
  }
}

TEST(CheckRanks, NamesWhatDoesNotDivideAndHowManyRanksWouldDo) {
  const auto refusal = [](const Decoder& decoder, int ranks) {
    const Status status = check_ranks(decoder, ranks, "the target");
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_TRUE(check_ranks(decoder_of(attention(6, 2), Dense{12}), 2, "the target").ok());
  EXPECT_EQ(refusal(decoder_of(attention(6, 2), Dense{12}), 4),
            "--tensor-parallel-size 4 needs the target's attention heads to be a multiple of 4, but it has 6: use 2.");
  EXPECT_THAT(refusal(decoder_of(attention(6, 3), Dense{12}), 2),
              HasSubstr("KV heads to be a multiple of 2 or a divisor"));
  EXPECT_THAT(refusal(decoder_of(attention(4, 2), Dense{14}), 4), HasSubstr("inner width to be a multiple of 4"));
  Experts experts;
  experts.router.experts = 3, experts.router.top_k = 1, experts.inner = 8, experts.shared_inner = 6;
  EXPECT_THAT(refusal(decoder_of(attention(4, 2), experts), 4), HasSubstr("shared experts"));
  experts.router.experts = 8, experts.inner = 6, experts.shared_inner = 8;
  EXPECT_THAT(refusal(decoder_of(attention(8, 8), experts), 8), HasSubstr("it has 6: use 2, or --enable-expert-par"));
  experts.router.experts = 6, experts.inner = 7, experts.by_expert = true;
  EXPECT_TRUE(check_ranks(decoder_of(attention(4, 2), experts), 2, "the target").ok()) << "no expert is cut";
  EXPECT_EQ(refusal(decoder_of(attention(4, 2), experts), 4),
            "--tensor-parallel-size 4 needs the target's experts, which --enable-expert-parallel divides, to be a "
            "multiple of 4, but it has 6: use 2.");
  experts.inner = 8;
  EXPECT_THAT(refusal(decoder_of(attention(4, 2), experts), 4),
              HasSubstr("but it has 6: use 2, or leave --enable-expert-parallel out."));
  EXPECT_THAT(refusal(decoder_of(attention(6, 2), experts), 4),
              HasSubstr("heads to be a multiple of 4, but it has 6: use 2."))
      << "cut experts would not help";
  EXPECT_THAT(refusal(decoder_of(GatedDelta{{2, 6, 16, 16, 4}}, Dense{12}), 4), HasSubstr("value heads"));
  EXPECT_TRUE(check_ranks(decoder_of(GatedDelta{{1, 2, 16, 16, 4}}, Dense{12}), 2, "the target").ok());
}

TEST(Shard, OfOneRankIsTheWhole) {
  const Decoder decoder = decoder_of(attention(4, 2), Dense{13});
  EXPECT_TRUE(check_ranks(decoder, 1, "the target").ok());
  EXPECT_EQ(count(shard(params(decoder), 0, 1)), count(params(decoder)));
}

}  // namespace
}  // namespace volley::model
