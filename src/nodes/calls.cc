#include "nodes/calls.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/math.h"
#include "net/fields.h"

namespace volley::nodes {
namespace {

using decode::RoundSegment;
using decode::VerifyBudget;

// Part of the protocol's version (kProtocol in meeting.h), like the order of alternatives and fields.
constexpr uint32_t kCall = 100;

// For counts that no limit of the model bounds.
constexpr float kLeastFloat = std::numeric_limits<float>::denorm_min(), kMostFloat = 1e30f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class NoSource final : public decode::MaskSource {
 public:
  void fill(std::span<const TokenId>, uint32_t*, int32_t) override { VOLLEY_CHECK(false); }
  void give_up(Why) override {}
};

// The kinds of fields that commands have, within the limits of a model.
class CallFields : public net::Fields {
 public:
  explicit CallFields(const CallLimits& limits) : limits_(limits) {}  // a writer needs no limits
  CallFields(std::span<const std::byte> message, const CallLimits& limits) : Fields(message), limits_(limits) {}

  void slot(int32_t& slot) { within(slot, 0, limits_.slots - 1, "the slot"); }
  void group(int32_t& group) {
    VOLLEY_CHECK(!reads() || !limits_.groups.empty());
    within(group, 0, static_cast<int32_t>(limits_.groups.size()) - 1, "the cache group");
  }
  void index(int32_t& index) {
    within(index, 0, divide_up(limits_.max_positions, limits_.page_size) - 1, "the place of a page");
  }
  // Includes the scrap page after the last one.
  void page(int32_t group, PageId& page) {
    within(page.value, 0, reads() ? static_cast<int32_t>(limits_.groups[static_cast<size_t>(group)].pages) : 0,
           "the page");
  }
  void copy(kv::MemoryCopy& copy) {
    using Kind = kv::MemoryCopy::Kind;
    auto kind = static_cast<uint8_t>(copy.kind);
    within(kind, 0, static_cast<uint8_t>(Kind::kPage), "the kind of a copy");
    copy.kind = static_cast<Kind>(kind);
    if (copy.kind == Kind::kPage) {
      group(copy.group);
      page(copy.group, copy.from);
      return page(copy.group, copy.to);
    }
    if (reads() && limits_.snapshots == 0) fail("there are no snapshots");
    slot(copy.slot.value);
    PageId& snapshot = copy.kind == Kind::kSave ? copy.to : copy.from;
    within(snapshot.value, 0, static_cast<int32_t>(limits_.snapshots) - 1, "the snapshot");
  }
  void start(decode::SlotStart& start);
  void segments(std::span<const RoundSegment>& segments);
  void step(std::span<const RoundSegment>& segments, VerifyBudget& budget);
  void see(decode::See& see);
  void of_one_process() { fail("it is for replicas of one process"); }

  std::vector<std::shared_ptr<const void>> take_owned() { return std::move(owned_); }

 private:
  // A bounded list of tokens of the vocabulary.
  void tokens(std::vector<TokenId>& all, size_t most, const char* what);
  void tokens(std::span<const TokenId>& all, size_t most, const char* what) {
    std::vector<TokenId> own(all.begin(), all.end());
    tokens(own, most, what);
    if (reads()) all = keep(std::move(own));
  }
  template <typename T>
  std::span<const T> keep(std::vector<T> values) {
    auto kept = std::make_shared<const std::vector<T>>(std::move(values));
    owned_.push_back(kept);
    return *kept;
  }
  void sampling(ops::SlotSampling& sampling);
  void segment(RoundSegment& segment);
  void axes(RoundSegment& segment);
  void given(decode::GivenRows& rows, size_t known);
  void verify_budget(VerifyBudget& budget);
  void check_segments(std::span<const RoundSegment> segments);

  const CallLimits& limits_;
  std::vector<std::shared_ptr<const void>> owned_;
};

void CallFields::see(decode::See& see) {
  const int32_t most =
      limits_.picture_side > 0 ? static_cast<int32_t>(limits_.picture_pixels / limits_.picture_side) : 0;
  within(see.width, 1, most, "the width of a picture");
  within(see.height, 1, most, "the height of a picture");
  within(see.begin, 0, INT32_MAX - 1, "the first unit of a picture");
  within(see.end, see.begin + 1, INT32_MAX, "the end of a picture's units");
  std::vector<uint8_t> own(see.rgb.begin(), see.rgb.end());
  const int64_t pixels = int64_t{see.width} * see.height;
  array(own, reads() ? 3 * limits_.picture_pixels : own.size(), "a picture's pixels");
  if (!reads() || failed()) return;
  if (see.width % limits_.picture_side != 0 || see.height % limits_.picture_side != 0 ||
      pixels > limits_.picture_pixels || std::ssize(own) != (see.begin == 0 ? 3 * pixels : 0)) {
    return fail("a picture's pixels do not fit its size");
  }
  see.rgb = keep(std::move(own));
}

void CallFields::tokens(std::vector<TokenId>& all, size_t most, const char* what) {
  array(all, most, what);
  if (!reads()) return;
  for (const TokenId token : all) {
    if (token >= 0 && token < limits_.vocab) continue;
    fail(std::string(what) + " has the token " + std::to_string(token) + ", which the vocabulary has not");
    return all.clear();
  }
}

void CallFields::sampling(ops::SlotSampling& s) {
  SamplingParams& p = s.params;
  within(p.temperature, 0, kMostFloat, "the temperature");
  within(p.top_p, kLeastFloat, 1, "top_p");
  within(p.min_p, 0, 1, "min_p");
  within(p.repetition_penalty, kLeastFloat, kMostFloat, "the repetition penalty");
  within(p.presence_penalty, -kMostFloat, kMostFloat, "the presence penalty");
  within(p.frequency_penalty, -kMostFloat, kMostFloat, "the frequency penalty");
  within(p.top_k, -1, INT32_MAX, "top_k");
  list(p.logit_bias, ops::kMaxLogitBias, "the number of logit biases", [this](auto& bias) {
    within(bias.first, 0, limits_.vocab - 1, "the token of a logit bias");
    within(bias.second, -kMostFloat, kMostFloat, "a logit bias");
  });
  values(p.choice_index);
  within(p.logprobs, -1, ops::kMaxLogprobs, "the number of logprobs");
  values(s.seed);
  within(s.prompt_length, 1, limits_.max_positions, "the prompt's length");
  within(s.min_tokens, 0, INT32_MAX, "the least number of tokens");
  tokens(s.end_ids, ops::kMaxEndIds, "the list of end ids");
}

void CallFields::start(decode::SlotStart& start) {
  const auto most = static_cast<size_t>(limits_.max_positions);
  sampling(start.sampling);
  tokens(start.limits.end_ids, ops::kMaxEndIds, "the list of end ids");
  within(start.limits.min_tokens, 0, INT32_MAX, "the least number of tokens");
  within(start.limits.max_tokens, 0, INT32_MAX, "the most tokens");
  within(start.draft_context, 0, limits_.max_positions, "the drafter's context");
  within(start.rope_offset, -limits_.max_positions, 0, "the offset of rotary positions");
  tokens(start.prompt, most, "the prompt");
  tokens(start.output, most, "the output");
  if (!reads()) return;
  if (start.prompt.empty()) fail("the prompt is empty");
  if (start.rope_offset + std::ssize(start.prompt) < 1) fail("the offset of rotary positions makes some negative");
  const size_t room = most - start.prompt.size();
  if (start.output.size() > room || static_cast<size_t>(start.limits.max_tokens) > room) {
    fail("the sequence is longer than it may be");
  }
}

void CallFields::segment(RoundSegment& s) {
  slot(s.slot);
  within(s.start, RoundSegment::kLastToken, limits_.max_positions - 1, "the start of a segment");
  within(s.draft, 0, limits_.block_size - 1, "the number of drafted tokens");
  bool masks = s.masks != nullptr, simulates = s.simulate.has_value();
  values(s.chooses, masks, simulates);
  if (reads() && masks) s.masks = std::make_shared<NoSource>();
  within(s.shift, -kInfinity, kInfinity, "the shift");
  if (simulates) {
    if (reads()) s.simulate.emplace();
    within(s.simulate->p, 0, 1, "a simulated acceptance");
    within(s.simulate->confidence, 0, 1, "a simulated confidence");
  }
  tokens(s.known, static_cast<size_t>(limits_.max_rows), "the known tokens");
  tokens(s.scored, s.known.size(), "the tokens to score");
  axes(s);
  list(s.given, static_cast<uint32_t>(s.known.size()), "the number of spans with vectors",
       [&](decode::GivenRows& rows) { given(rows, s.known.size()); });
  size_t before = 0;
  for (const decode::GivenRows& rows : s.given) {
    if (!reads() || failed()) return;
    if (static_cast<size_t>(rows.begin) < before) fail("spans with vectors overlap");
    before = static_cast<size_t>(rows.begin) + rows.vectors[0].size() / static_cast<size_t>(limits_.hidden);
  }
}

void CallFields::axes(RoundSegment& s) {
  std::vector<int32_t> all;
  for (const decode::RopeAxes& row : s.axes) all.insert(all.end(), row.begin(), row.end());
  array(all, s.known.size() * ops::kRopeAxes, "the rotary positions");
  if (!reads() || all.empty()) return;
  if (!limits_.rope_axes || all.size() != s.known.size() * ops::kRopeAxes) return fail("rotary positions do not fit");
  for (const int32_t position : all) {
    if (position < 0 || position >= limits_.max_positions) fail("a rotary position is out of range");
  }
  std::vector<decode::RopeAxes> own(s.known.size());
  for (size_t i = 0; i < all.size(); ++i) own[i / ops::kRopeAxes][i % ops::kRopeAxes] = all[i];
  s.axes = keep(std::move(own));
}

void CallFields::given(decode::GivenRows& rows, size_t known) {
  within(rows.begin, 0, static_cast<int32_t>(known) - 1, "the first token with vectors");
  list(rows.vectors, static_cast<uint32_t>(limits_.vectors), "the number of vectors of a token",
       [&](std::span<const float>& vectors) {
         std::vector<float> own(vectors.begin(), vectors.end());
         array(own, (known - static_cast<size_t>(rows.begin)) * static_cast<size_t>(limits_.hidden), "the vectors");
         if (reads()) vectors = keep(std::move(own));
       });
  if (!reads()) return;
  if (std::ssize(rows.vectors) != limits_.vectors) return fail("a token has another number of vectors");
  for (const std::span<const float>& vectors : rows.vectors) {
    const bool whole = !vectors.empty() && vectors.size() % static_cast<size_t>(limits_.hidden) == 0;
    if (!whole || vectors.size() != rows.vectors[0].size()) fail("vectors do not fit their tokens");
  }
}

void CallFields::segments(std::span<const RoundSegment>& segments) {
  std::vector<RoundSegment> own(segments.begin(), segments.end());
  list(own, static_cast<uint32_t>(limits_.slots), "the number of segments", [this](RoundSegment& s) { segment(s); });
  if (!reads()) return;
  check_segments(own);
  segments = keep(std::move(own));
}

// The round relies on these: each slot at most once, decoding segments first, no more rows than a step has.
void CallFields::check_segments(std::span<const RoundSegment> segments) {
  std::vector<bool> seen(static_cast<size_t>(limits_.slots));
  int64_t rows = 0, scored = 0;
  bool prompts = false;
  for (const RoundSegment& s : segments) {
    const bool decodes = s.start == RoundSegment::kLastToken;
    if (seen[static_cast<size_t>(s.slot)]) fail("a slot takes part twice");
    seen[static_cast<size_t>(s.slot)] = true;
    if (decodes != s.known.empty()) fail("known tokens and the start of a segment do not fit");
    if (decodes && prompts) fail("a segment that decodes comes after one that does not");
    if (decodes && !s.chooses) fail("a segment that decodes chooses nothing");
    if (!decodes && s.draft > 0) fail("a prompt drafts");
    if (s.masks != nullptr && !s.chooses) fail("there are masks where nothing is chosen");
    if (!decodes && s.start + std::ssize(s.known) > limits_.max_positions) fail("a segment reaches too far");
    prompts = prompts || !decodes;
    rows += decodes ? 1 + s.draft : std::ssize(s.known);
    scored += std::ssize(s.scored);
  }
  // A round divides fewer rows than these only if it drafts more than it verifies; the bound is the one for drafts.
  const int64_t most = int64_t{limits_.slots} * limits_.block_size + limits_.max_rows;
  if (rows > most || scored > limits_.max_rows) fail("a step has more rows than it may have");
}

void CallFields::verify_budget(VerifyBudget& budget) {
  within(budget.rows, VerifyBudget::kAll, limits_.logit_rows, "the number of rows to share out");
  within(budget.drafter, 0, std::max<int32_t>(1, std::ssize(limits_.proposals)) - 1, "the drafter");
  bool has_table = budget.table != nullptr;
  values(has_table);
  if (!has_table) return;
  auto table = std::make_shared<ops::SurvivalTable>();
  if (!reads()) *table = *budget.table;
  for (auto& position : table->log_odds) {
    for (float& odds : position) within(odds, -kInfinity, kInfinity, "a log-odds");
  }
  budget.table = table.get();
  owned_.push_back(std::move(table));
}

void CallFields::step(std::span<const RoundSegment>& all, VerifyBudget& budget) {
  segments(all);
  verify_budget(budget);
  if (!reads()) return;
  const int32_t most = limits_.proposals.empty() ? 0 : limits_.proposals[budget.drafter];
  const bool shares = budget.rows != VerifyBudget::kAll;
  int64_t decoding = 0, rows = shares ? budget.rows : 0, logits = rows;  // rows of the target's pass; rows of logits
  for (const RoundSegment& s : all) {
    const bool decodes = s.start == RoundSegment::kLastToken;
    const int64_t own = !decodes ? std::ssize(s.known) : shares ? 0 : 1 + s.draft;
    if (s.draft > most) return fail("a segment drafts more than its drafter does");
    decoding += decodes ? 1 : 0;
    rows += own;
    logits += std::ssize(s.scored) + (decodes ? own : s.chooses ? 1 : 0);
  }
  if (all.empty()) fail("nobody takes part in a step");
  if (shares && (budget.table == nullptr || budget.rows < decoding || decoding == 0)) {
    fail("the rows to share out do not fit the step");
  }
  if (std::max(rows, logits) > limits_.max_rows) fail("a step has more rows than it may have");
}

struct MessageFields {
  CallFields& f;

  void operator()(decode::Command& command) const {
    f.one_of(command, "the kind of a command", [this](auto& c) { c.fields(f); });
  }
  void operator()(Masks& masks) const { f.array(masks.words, kMostCallBytes / sizeof(uint32_t), "the masks"); }
  void operator()(End&) const {}
};

}  // namespace

void append_call(Bytes& out, Message message) {
  const CallLimits none;
  CallFields f(none);
  f.one_of(message, "", MessageFields{f});
  net::append_frame(out, kCall, f.written());
}

Result<Call> read_call(const net::Frame& frame, const CallLimits& limits) {
  if (frame.kind != kCall) {
    return invalid_argument("a message of an unknown kind came (" + std::to_string(frame.kind) + ")");
  }
  CallFields f(frame.payload, limits);
  Call call;
  f.one_of(call.message, "the kind of a call", MessageFields{f});
  VOLLEY_RETURN_IF_ERROR(f.finish("a call"));
  call.owned = f.take_owned();
  return call;
}

}  // namespace volley::nodes
