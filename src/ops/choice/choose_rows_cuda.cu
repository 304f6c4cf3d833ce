#include "ops/choice/choose_rows_cuda.h"

#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/choice/filter_search.cuh"

namespace volley::ops::choice {
namespace {

// The result of a row's choice.
struct Choice {
  Key key;  // key of its z
  float probability;
};

template <bool kInShared>
class RowChooser {
 public:
  // values: this block's, unless they lie in shared memory.
  __device__ RowChooser(const ChooseRowsArgs& args, float* values) : args_(args), in_global_(values), search_(team_) {
    team_.init();
  }

  __device__ void run(const RowItem& item) {
    const ChoiceSegment segment = args_.segments[item.segment];
    copy_rule(args_.slots[segment.slot]);
    for (int32_t i = item.first; i < item.first + item.rows; ++i) {
      const int64_t row = int64_t{segment.row_begin} + i;
      choose(describe(segment, i), row);
      if (item.rows > 1) {
        Team::sync();  // the choice is visible to the next row's penalties
      } else {
        __syncthreads();  // the values are free
      }
    }
  }

  // No block may end while another still reads its shared memory.
  __device__ void leave() { Team::sync(); }

 private:
  using Row = RowValues<kInShared>;

  // Copied to shared memory: the parameters are read in many places, each of which would wait for the cache.
  __device__ static DeviceRule& rule() {
    __shared__ uint64_t memory[(sizeof(DeviceRule) + 7) / 8];
    return *reinterpret_cast<DeviceRule*>(memory);
  }
  __device__ static void copy_rule(const DeviceRule& from) {
    constexpr unsigned kWords = sizeof(DeviceRule) / sizeof(uint32_t);
    if (threadIdx.x < kWords) {
      reinterpret_cast<uint32_t*>(&rule())[threadIdx.x] = reinterpret_cast<const uint32_t*>(&from)[threadIdx.x];
    }
    __syncthreads();
  }

  __device__ RowTask describe(const ChoiceSegment& segment, int32_t i) const {
    RowTask task;
    task.lists = args_.slots + segment.slot;
    task.slot = &rule();
    task.vocab = args_.vocab;
    task.logits = args_.logits + (int64_t{segment.row_begin} + i) * args_.vocab;
    task.index = segment.first_index + i;
    task.prefix = segment.prefix != nullptr ? segment.prefix : args_.out.tokens + segment.row_begin;
    task.prefix_count = task.slot->penalised != 0 ? i : 0;
    task.mask = segment.mask == nullptr ? nullptr : segment.mask + int64_t{i} * segment.mask_words;
    task.mask_words = segment.mask_words;
    task.begin = static_cast<int32_t>(min(int64_t{Team::rank()} * args_.part, int64_t{args_.vocab}));
    task.count = min(args_.part, args_.vocab - task.begin);
    return task;
  }

  __device__ void choose(const RowTask& task, int64_t row) {
    const bool wants_logprobs = args_.out.logprobs != nullptr && task.slot->logprobs >= 0;
    const Row values = {in_global_, task.begin, task.count};
    const Key mine = load_row(task, values.z());
    const Key top = team_.highest(mine);
    const float peak = value_of(top);
    const bool usable = top < kNoNumber && isfinite(peak);
    Choice choice = {};
    if (usable) choice = choose_usable(task, values, top, mine);
    if (Team::rank() == 0 && threadIdx.x == 0) {
      args_.out.tokens[row] = usable ? id_of(choice.key) : 0;
      if (args_.out.finite != nullptr) args_.out.finite[row] = usable ? 1 : 0;
      if (args_.out.probability != nullptr) args_.out.probability[row] = choice.probability;
      if (wants_logprobs && !usable) {
        args_.out.logprobs[row].count = 0;
        args_.out.logprobs[row].chosen = {0, -INFINITY};
      }
    }
    if (wants_logprobs && usable) write_logprobs(task, id_of(choice.key), args_.out.logprobs[row]);
  }

  __device__ Choice choose_usable(const RowTask& task, Row values, Key top, Key mine) {
    const DeviceRule& slot = *task.slot;
    const float peak = value_of(top);
    Key floor = 0;
    if (slot.has_min_p != 0) {
      floor = Key{ordered(static_cast<float>(static_cast<double>(peak) + slot.log_min_p))} << 32;
    }
    if (slot.top_k >= 1 && slot.top_k <= 32) {
      const uint32_t listed = search_.list_highest(values, peak, floor, mine, slot.top_k);
      if (listed <= FilterSearch<kInShared>::kList) return draw_from_list(task, peak, listed);
    }
    if (slot.top_k >= 1) {
      floor = search_.shortest_beginning(values, peak, floor, false, static_cast<Key>(slot.top_k));
    }
    if (slot.top_p < 1.0f) {
      const auto target = share(slot.top_p, kept_weight(values, peak, floor));
      floor = search_.shortest_beginning(values, peak, floor, true, target);
    }
    Choice choice = {};
    choice.key = slot.greedy != 0 ? top : draw(task, values, peak, floor);
    if (args_.out.probability != nullptr) {
      choice.probability = static_cast<float>(static_cast<double>(weight(value_of(choice.key) - peak)) /
                                              static_cast<double>(kept_weight(values, peak, floor)));
    }
    return choice;
  }

  // The least whole weight that reaches top_p of `total`; at least one token is kept.
  __device__ static Key share(float top_p, Key total) {
    return max(Key{1}, static_cast<Key>(ceil(static_cast<double>(top_p) * static_cast<double>(total))));
  }

  __device__ __noinline__ Key kept_weight(Row values, float peak, Key floor) {
    Key sum = 0;
    if (floor == 0) {
      values.each_from(-INFINITY, [&](float z, int32_t) { sum += weight(z - peak); });
    } else {
      values.each_from(value_of(floor), [&](float z, int32_t id) {
        if (key_of(z, id) >= floor) sum += weight(z - peak);
      });
    }
    return team_.sum(sum);
  }

  __device__ static Choice& chosen() {
    __shared__ Choice memory;
    return memory;
  }

  // Top-k and top-p among the k <= 32 highest, and the draw, in one warp: every lane has a token.
  __device__ Choice draw_from_list(const RowTask& task, float peak, uint32_t listed) {
    const DeviceRule& slot = *task.slot;
    if (Team::rank() == 0) {
      const int32_t kept = search_.rank_list(listed, slot.top_k);
      if (threadIdx.x < 32) {
        const int32_t lane = threadIdx.x;
        const bool used = lane < kept;
        const Key key = used ? search_.ranked(lane) : 0;
        const Key mine = used ? weight(value_of(key) - peak) : 0;
        Key until = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const Key other = __shfl_up_sync(0xffffffff, until, step);
          if (lane >= step) until += other;
        }
        Key total = __shfl_sync(0xffffffff, until, 31);
        const bool stays = used && (slot.top_p >= 1.0f || until - mine < share(slot.top_p, total));
        const uint32_t last = 31 - __clz(__ballot_sync(0xffffffff, stays));
        total = __shfl_sync(0xffffffff, until, static_cast<int>(last));
        const Key score = stays ? key_of(noisy(task, key), id_of(key)) : 0;
        Key best = score;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(0xffffffff, best, step));
        if (stays && score == best) {
          chosen().key = key;
          chosen().probability = static_cast<float>(static_cast<double>(mine) / static_cast<double>(total));
        }
      }
      __syncthreads();
    }
    Choice choice = {};
    if (Team::rank() == 0) choice = chosen();
    choice.key = team_.highest(choice.key);
    return choice;
  }

  __device__ static float noisy(const RowTask& task, Key key) {
    const DeviceRule& slot = *task.slot;
    const int32_t id = id_of(key);
    const uint4 words = philox(slot.seed[0], slot.seed[1], static_cast<uint32_t>(id) / 4,
                               static_cast<uint32_t>(task.index), slot.choice_index);
    return value_of(key) + gumbel(word_of(words, id));
  }

  // The highest z + g of the tokens from `floor` up. Returns the key of its z.
  __device__ __noinline__ Key draw(const RowTask& task, Row values, float peak, Key floor) {
    const DeviceRule& slot = *task.slot;
    const uint32_t k0 = slot.seed[0], k1 = slot.seed[1], c2 = slot.choice_index;
    const float lowest = floor == 0 ? -INFINITY : value_of(floor);
    Contest contest(peak, peak + kGumbelMin);
    Key best = 0;
    for (int32_t start = 0; start < values.groups(); start += Team::kThreads) {
      const int32_t g = start + static_cast<int32_t>(threadIdx.x);
      uint4 words = {};
      float odds = INFINITY;
      if (g < values.groups()) {
        const float highest = highest_of(values.group(g));
        if (highest >= lowest) {
          odds = contest.odds(highest, [&] {
            return words = philox(k0, k1, static_cast<uint32_t>(values.begin / 4 + g),
                                  static_cast<uint32_t>(task.index), c2);
          });
        }
      }
      best = max(best, score_open_groups(task, values, contest, g, words, odds, floor));
      if (start != 0) continue;
      best = Team::highest_of_block(best);  // raises the contest's bar early, so that few later groups are scored
      if (best != 0) contest.raise(value_of(best));
    }
    best = team_.highest(best);
    // The block that holds the winner knows its z.
    const int32_t at = id_of(best) - values.begin;
    const bool here = at >= 0 && at < values.count;
    return team_.highest(here ? key_of(values.z()[at], id_of(best)) : 0);
  }

  // Scores the groups of a warp's lanes, one after the other, the likeliest first, until none of the rest can win. For
  // each group every lane scores one token.
  __device__ Key score_open_groups(const RowTask& task, Row values, Contest& contest, int32_t g, uint4 words,
                                   float odds, Key floor) {
    Key best = 0;
    while (__any_sync(0xffffffff, odds < INFINITY && contest.open(odds))) {
      const uint32_t bits = __float_as_uint(odds), least = __reduce_min_sync(0xffffffff, bits);
      const int leader = __ffs(__ballot_sync(0xffffffff, bits == least)) - 1;
      const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), group = __shfl_sync(0xffffffff, g, leader);
      const uint4 theirs =
          make_uint4(__shfl_sync(0xffffffff, words.x, leader), __shfl_sync(0xffffffff, words.y, leader),
                     __shfl_sync(0xffffffff, words.z, leader), __shfl_sync(0xffffffff, words.w, leader));
      const int32_t at = 4 * group + lane % 4, id = values.begin + at;
      const float z = values.z()[at];
      Key score = at < values.count && key_of(z, id) >= floor ? key_of(z + gumbel(word_of(theirs, id)), id) : 0;
      score = max(score, __shfl_xor_sync(0xffffffff, score, 1));
      score = max(score, __shfl_xor_sync(0xffffffff, score, 2));
      if (score > best) {
        best = score;
        contest.raise(value_of(score));
      }
      if (lane == leader) odds = INFINITY;
    }
    return best;
  }

  // Writes the log-softmax of the raw logits, which it puts in the place of the values.
  __device__ __noinline__ void write_logprobs(const RowTask& task, TokenId chosen, RowLogprobs& out) {
    const int32_t wanted = task.slot->logprobs;
    const Key lowest = key_of(-INFINITY, 0) + 1;  // the first above every token at -inf
    const Row raw = {in_global_, task.begin, task.count};
    const Key mine = load_unadjusted(task, 1.0f, raw.z()).key();
    const float peak = value_of(team_.highest(mine));
    Key sum = 0;
    raw.each_from(-INFINITY, [&](float z, int32_t) { sum += weight(z - peak); });
    const double total = static_cast<double>(team_.sum(sum)) / static_cast<double>(kWeightOne);
    const double log_sum = static_cast<double>(peak) + log(total);
    const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_sum); };
    if (Team::rank() == 0 && threadIdx.x == 0) out.chosen = {chosen, logprob(task.logits[chosen])};
    if (wanted == 0) {
      if (Team::rank() == 0 && threadIdx.x == 0) out.count = 0;
      return;
    }
    const uint32_t listed = search_.list_highest(raw, peak, lowest, mine, wanted);
    if (listed >= static_cast<uint32_t>(wanted) && listed <= FilterSearch<kInShared>::kList) {
      if (Team::rank() != 0) return;
      const int32_t count = search_.rank_list(listed, wanted);
      if (threadIdx.x == 0) out.count = count;
      if (static_cast<int32_t>(threadIdx.x) < count) {
        const Key key = search_.ranked(static_cast<int32_t>(threadIdx.x));
        out.top[threadIdx.x] = {id_of(key), logprob(value_of(key))};
      }
      return;
    }
    // Too many are equal, or some are below the window: one after the other.
    Key below = ~Key{0};
    for (int32_t n = 0; n < wanted; ++n) {
      Key next = 0;
      raw.each_from(-INFINITY, [&](float z, int32_t id) {
        const Key key = key_of(z, id);
        if (key >= lowest && key < below) next = max(next, key);
      });
      below = team_.highest(next);
      if (Team::rank() == 0 && threadIdx.x == 0) {
        if (below != 0) out.top[n] = {id_of(below), logprob(value_of(below))};
        out.count = below != 0 ? n + 1 : n;
      }
      if (below == 0) return;
    }
  }

  const ChooseRowsArgs& args_;
  float* in_global_;
  Team team_;
  FilterSearch<kInShared> search_;
};

// Team t takes items t, t + teams, … kInShared: the values lie in shared memory, not in args.values.
template <bool kInShared>
__global__ void __launch_bounds__(Team::kThreads, 2) choose_rows_kernel(const __grid_constant__ ChooseRowsArgs args) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t items = *args.item_count;
  if (items == 0) return;
  RowChooser<kInShared> chooser(args, kInShared ? nullptr : args.values + int64_t{blockIdx.x} * args.part);
  const auto team = static_cast<int32_t>(blockIdx.x / Team::size()),
             teams = static_cast<int32_t>(gridDim.x / Team::size());
  for (int32_t i = team; i < items; i += teams) chooser.run(args.items[i]);
  chooser.leave();
}

constexpr int64_t kOtherShared = 28 << 10;  // the most shared memory that the kernel takes beside the values

}  // namespace

CudaSamplerState::Teams plan_teams(const GpuInfo& gpu, int32_t vocab) {
  CudaSamplerState::Teams teams;
  teams.team = gpu.at_least(90) ? Team::kMaxBlocks : 1;  // blocks of a cluster
  teams.count = std::max(1, 2 * gpu.multiprocessors / teams.team);
  teams.part = (vocab + teams.team - 1) / teams.team;
  teams.part = (teams.part + 3) / 4 * 4;
  const int64_t wanted = int64_t{teams.part} * int64_t{sizeof(float)} + kOtherShared;
  teams.in_shared = wanted <= gpu.block_shared_bytes;
  return teams;
}

void choose_rows_cuda(Stream& stream, const ChooseRowsArgs& args, const CudaSamplerState::Teams& teams,
                      int64_t max_items) {
  ChooseRowsArgs with_parts = args;
  with_parts.part = teams.part;
  with_parts.values = teams.values;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(max_items, teams.count) * teams.team));
  how.block = dim3(Team::kThreads);
  how.shared_bytes = teams.in_shared ? sizeof(float) * static_cast<size_t>(teams.part) : 0;
  how.cluster = static_cast<unsigned>(teams.team);
  how.early = true;
  cuda::launch(teams.in_shared ? choose_rows_kernel<true> : choose_rows_kernel<false>, how, stream, with_parts);
}

}  // namespace volley::ops::choice
