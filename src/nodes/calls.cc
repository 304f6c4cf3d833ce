#include "nodes/calls.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "net/bytes.h"

namespace volley::nodes {
namespace {

using net::ByteReader;
using net::ByteWriter;

// Part of what nodes must have in common (kProtocol in meeting.h).
enum Kind : uint32_t {
  kStartSlot = 100,
  kClearSlot,
  kSetPage,
  kSaveState,
  kRestoreState,
  kCopyPage,
  kReserve,
  kEnqueue,
  kWait,
  kMasks,
  kEnd,
};

void append(Bytes& out, Kind kind, const ByteWriter& payload = {}) {
  net::append_frame(out, kind, payload.bytes());
}

// For what no limit of the model bounds.
constexpr float kLeastFloat = std::numeric_limits<float>::denorm_min(), kMostFloat = 1e30f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class NoSource final : public spec::MaskSource {
 public:
  void fill(std::span<const TokenId>, uint32_t*, int32_t) override { VOLLEY_CHECK(false); }
  void give_up(Why) override {}
};

void put_sampling(ByteWriter& w, const ops::SlotSampling& s) {
  const SamplingParams& p = s.params;
  for (const float value :
       {p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty}) {
    w.put(value);
  }
  w.put(p.top_k);
  w.put(static_cast<uint32_t>(p.logit_bias.size()));
  for (const auto& [token, bias] : p.logit_bias) {
    w.put(token);
    w.put(bias);
  }
  w.put(p.choice_index);
  w.put(p.logprobs);
  w.put(s.seed);
  w.put(s.prompt_length);
  w.put(s.min_tokens);
  w.put_array(std::span<const TokenId>(s.end_ids));
}

// A bounded list of tokens of the vocabulary.
std::vector<TokenId> take_tokens(ByteReader& r, const CallLimits& limits, size_t most, const char* what) {
  std::vector<TokenId> tokens = r.take_array<TokenId>(most, what);
  for (const TokenId token : tokens) {
    if (token >= 0 && token < limits.vocab) continue;
    r.fail(std::string(what) + " has the token " + std::to_string(token) + ", which the vocabulary has not");
    return {};
  }
  return tokens;
}

ops::SlotSampling take_sampling(ByteReader& r, const CallLimits& limits) {
  ops::SlotSampling s;
  SamplingParams& p = s.params;
  p.temperature = r.take_within(0.0f, kMostFloat, "the temperature");
  p.top_p = r.take_within(kLeastFloat, 1.0f, "top_p");
  p.min_p = r.take_within(0.0f, 1.0f, "min_p");
  p.repetition_penalty = r.take_within(kLeastFloat, kMostFloat, "the repetition penalty");
  p.presence_penalty = r.take_within(-kMostFloat, kMostFloat, "the presence penalty");
  p.frequency_penalty = r.take_within(-kMostFloat, kMostFloat, "the frequency penalty");
  p.top_k = r.take_within<int32_t>(-1, INT32_MAX, "top_k");
  const auto biases = r.take_within<uint32_t>(0, ops::kMaxLogitBias, "the number of logit biases");
  for (uint32_t i = 0; i < biases && !r.failed(); ++i) {
    const auto token = r.take_within<TokenId>(0, limits.vocab - 1, "the token of a logit bias");
    p.logit_bias.emplace_back(token, r.take_within(-kMostFloat, kMostFloat, "a logit bias"));
  }
  p.choice_index = r.take<uint32_t>();
  p.logprobs = r.take_within<int32_t>(-1, ops::kMaxLogprobs, "the number of logprobs");
  s.seed = r.take<uint64_t>();
  s.prompt_length = r.take_within<int32_t>(1, limits.max_positions, "the prompt's length");
  s.min_tokens = r.take_within<int32_t>(0, INT32_MAX, "the least number of tokens");
  s.end_ids = take_tokens(r, limits, ops::kMaxEndIds, "the list of end ids");
  return s;
}

int32_t take_slot(ByteReader& r, const CallLimits& limits) {
  return r.take_within<int32_t>(0, limits.slots - 1, "the slot");
}

size_t take_group(ByteReader& r, const CallLimits& limits) {
  VOLLEY_CHECK(!limits.groups.empty());
  return r.take_within<uint32_t>(0, static_cast<uint32_t>(limits.groups.size()) - 1, "the cache group");
}

// The scrap page behind them included.
PageId take_page(ByteReader& r, const CallLimits& limits, size_t group) {
  const auto pages = static_cast<int32_t>(limits.groups[group].pages);
  return PageId(r.take_within<int32_t>(0, pages, "the page"));
}

PageId take_snapshot(ByteReader& r, const CallLimits& limits) {
  if (limits.snapshots == 0) r.fail("there are no snapshots");
  return PageId(r.take_within<int32_t>(0, static_cast<int32_t>(limits.snapshots) - 1, "the snapshot"));
}

StartSlot take_start(ByteReader& r, const CallLimits& limits) {
  StartSlot call;
  const auto most = static_cast<size_t>(limits.max_positions);
  call.slot = take_slot(r, limits);
  call.start.sampling = take_sampling(r, limits);
  call.start.limits.end_ids = take_tokens(r, limits, ops::kMaxEndIds, "the list of end ids");
  call.start.limits.min_tokens = r.take_within<int32_t>(0, INT32_MAX, "the least number of tokens");
  call.start.limits.max_tokens = r.take_within<int32_t>(0, INT32_MAX, "the most tokens");
  call.start.draft_context = r.take_within<int32_t>(0, limits.max_positions, "the drafter's context");
  call.prompt = take_tokens(r, limits, most, "the prompt");
  call.output = take_tokens(r, limits, most, "the output");
  if (call.prompt.empty()) r.fail("the prompt is empty");
  const size_t room = most - call.prompt.size();
  if (call.output.size() > room || static_cast<size_t>(call.start.limits.max_tokens) > room) {
    r.fail("the sequence is longer than it may be");
  }
  return call;
}

void put_segments(ByteWriter& w, std::span<const spec::RoundSegment> segments) {
  w.put(static_cast<uint32_t>(segments.size()));
  for (const spec::RoundSegment& s : segments) {
    w.put(s.slot);
    w.put(s.start);
    w.put(s.draft);
    w.put(s.chooses);
    w.put(s.masks != nullptr);
    w.put(s.shift);
    w.put(s.simulate.has_value());
    if (s.simulate) {
      w.put(s.simulate->p);
      w.put(s.simulate->confidence);
    }
    w.put_array(s.known);
    w.put_array(s.scored);
  }
}

// What the round relies on, too: a slot at most once, those that decode first, no more rows than a step has.
Segments take_segments(ByteReader& r, const CallLimits& limits) {
  constexpr int32_t kLast = spec::RoundSegment::kLastToken;
  struct Part {
    size_t known = 0, scored = 0;
  };
  Segments all;
  std::vector<Part> parts;
  std::vector<bool> seen(static_cast<size_t>(limits.slots));
  const auto source = std::make_shared<NoSource>();
  const auto count = r.take_within<uint32_t>(0, static_cast<uint32_t>(limits.slots), "the number of segments");
  int64_t rows = 0, scored = 0;
  bool prompts = false;
  for (uint32_t i = 0; i < count && !r.failed(); ++i) {
    spec::RoundSegment s;
    s.slot = take_slot(r, limits);
    s.start = r.take_within(kLast, limits.max_positions - 1, "the start of a segment");
    s.draft = r.take_within<int32_t>(0, limits.block_size - 1, "the number of drafted tokens");
    s.chooses = r.take<bool>();
    if (r.take<bool>()) s.masks = source;
    s.shift = r.take_within(-kInfinity, kInfinity, "the shift");
    if (r.take<bool>()) {
      const auto p = r.take_within(0.0f, 1.0f, "a simulated acceptance");
      s.simulate = spec::SimulatedAcceptance{p, r.take_within(0.0f, 1.0f, "a simulated confidence")};
    }
    const auto most = static_cast<size_t>(limits.max_rows);
    const std::vector<TokenId> known = take_tokens(r, limits, most, "the known tokens");
    const std::vector<TokenId> of_prompt = take_tokens(r, limits, known.size(), "the tokens to score");
    if (r.failed()) break;
    const bool decodes = s.start == kLast;
    if (seen[static_cast<size_t>(s.slot)]) r.fail("a slot takes part twice");
    seen[static_cast<size_t>(s.slot)] = true;
    if (decodes != known.empty()) r.fail("known tokens and the start of a segment do not fit");
    if (decodes && prompts) r.fail("a segment that decodes comes after one that does not");
    if (decodes && !s.chooses) r.fail("a segment that decodes chooses nothing");
    if (!decodes && s.draft > 0) r.fail("a prompt drafts");
    if (s.masks != nullptr && !s.chooses) r.fail("there are masks where nothing is chosen");
    if (!decodes && s.start + std::ssize(known) > limits.max_positions) r.fail("a segment reaches too far");
    prompts = prompts || !decodes;
    rows += decodes ? 1 + s.draft : std::ssize(known);
    scored += std::ssize(of_prompt);
    parts.push_back({known.size(), of_prompt.size()});
    all.tokens.insert(all.tokens.end(), known.begin(), known.end());
    all.tokens.insert(all.tokens.end(), of_prompt.begin(), of_prompt.end());
    all.segments.push_back(std::move(s));
  }
  // A round shares out fewer rows than these only where it drafts more than it verifies; the bound is that of drafts.
  const int64_t most = int64_t{limits.slots} * limits.block_size + limits.max_rows;
  if (rows > most || scored > limits.max_rows) r.fail("a step has more rows than it may have");
  if (r.failed()) return {};
  size_t at = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::span<const TokenId> tokens(all.tokens);
    all.segments[i].known = tokens.subspan(at, parts[i].known);
    all.segments[i].scored = tokens.subspan(at + parts[i].known, parts[i].scored);
    at += parts[i].known + parts[i].scored;
  }
  return all;
}

// Rows of the target's pass, and of logits.
struct StepRows {
  int64_t target = 0, logits = 0;
};
StepRows rows_of(const Enqueue& call) {
  const bool shares = call.budget_rows != spec::VerifyBudget::kAll;
  StepRows rows;
  if (shares) rows = {call.budget_rows, call.budget_rows};
  for (const spec::RoundSegment& s : call.of.segments) {
    const bool decodes = s.start == spec::RoundSegment::kLastToken;
    const int64_t own = !decodes ? std::ssize(s.known) : shares ? 0 : 1 + s.draft;
    rows.target += own;
    rows.logits += std::ssize(s.scored) + (decodes ? own : s.chooses ? 1 : 0);
  }
  return rows;
}

Enqueue take_enqueue(ByteReader& r, const CallLimits& limits) {
  Enqueue call;
  call.of = take_segments(r, limits);
  call.budget_rows = r.take_within(spec::VerifyBudget::kAll, limits.logit_rows, "the number of rows to share out");
  if (r.take<bool>()) {
    call.table = std::make_unique<ops::SurvivalTable>();
    for (auto& position : call.table->log_odds) {
      for (float& value : position) value = r.take_within(-kInfinity, kInfinity, "a log-odds");
    }
  }
  call.waits = r.take<bool>();
  if (r.failed()) return call;
  int32_t decoding = 0;
  for (const spec::RoundSegment& s : call.of.segments) decoding += s.start == spec::RoundSegment::kLastToken ? 1 : 0;
  if (call.of.segments.empty()) r.fail("nobody takes part in a step");
  const bool shares = call.budget_rows != spec::VerifyBudget::kAll;
  if (shares && (call.table == nullptr || call.budget_rows < decoding || decoding == 0)) {
    r.fail("the rows to share out do not fit the step");
  }
  const StepRows rows = rows_of(call);
  if (std::max(rows.target, rows.logits) > limits.max_rows) r.fail("a step has more rows than it may have");
  return call;
}

}  // namespace

spec::SlotStart StartSlot::whole() const {
  spec::SlotStart all = start;
  all.prompt = prompt;
  all.output = output;
  return all;
}

void append_start_slot(Bytes& out, int32_t slot, const spec::SlotStart& start) {
  ByteWriter w;
  w.put(slot);
  put_sampling(w, start.sampling);
  w.put_array(std::span<const TokenId>(start.limits.end_ids));
  w.put(start.limits.min_tokens);
  w.put(start.limits.max_tokens);
  w.put(start.draft_context);
  w.put_array(start.prompt);
  w.put_array(start.output);
  append(out, kStartSlot, w);
}

void append_clear_slot(Bytes& out, int32_t slot) {
  ByteWriter w;
  w.put(slot);
  append(out, kClearSlot, w);
}

void append_set_page(Bytes& out, int32_t slot, size_t group, int32_t index, PageId page) {
  ByteWriter w;
  w.put(slot);
  w.put(static_cast<uint32_t>(group));
  w.put(index);
  w.put(page.value);
  append(out, kSetPage, w);
}

void append_save_state(Bytes& out, int32_t slot, PageId snapshot) {
  ByteWriter w;
  w.put(slot);
  w.put(snapshot.value);
  append(out, kSaveState, w);
}

void append_restore_state(Bytes& out, PageId snapshot, int32_t slot) {
  ByteWriter w;
  w.put(slot);
  w.put(snapshot.value);
  append(out, kRestoreState, w);
}

void append_copy_page(Bytes& out, size_t group, PageId from, PageId to) {
  ByteWriter w;
  w.put(static_cast<uint32_t>(group));
  w.put(from.value);
  w.put(to.value);
  append(out, kCopyPage, w);
}

void append_reserve(Bytes& out, std::span<const spec::RoundSegment> segments) {
  ByteWriter w;
  put_segments(w, segments);
  append(out, kReserve, w);
}

void append_enqueue(Bytes& out, std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget,
                    bool waits) {
  ByteWriter w;
  put_segments(w, segments);
  w.put(budget.rows);
  w.put(budget.table != nullptr);
  if (budget.table != nullptr) {
    for (const auto& position : budget.table->log_odds) {
      for (const float value : position) w.put(value);
    }
  }
  w.put(waits);
  append(out, kEnqueue, w);
}

void append_wait(Bytes& out) {
  append(out, kWait);
}

void append_masks(Bytes& out, std::span<const uint32_t> words) {
  ByteWriter w;
  w.put_array(words);
  append(out, kMasks, w);
}

void append_end(Bytes& out) {
  append(out, kEnd);
}

Result<Call> read_call(const net::Frame& frame, const CallLimits& limits) {
  ByteReader r(frame.payload);
  Call call;
  switch (frame.kind) {
    case kStartSlot:
      call = take_start(r, limits);
      break;
    case kClearSlot:
      call = ClearSlot{take_slot(r, limits)};
      break;
    case kSetPage: {
      SetPage set;
      set.slot = take_slot(r, limits);
      set.group = take_group(r, limits);
      const int32_t width = (limits.max_positions + limits.page_size - 1) / limits.page_size;
      set.index = r.take_within<int32_t>(0, width - 1, "the place of a page");
      set.page = take_page(r, limits, set.group);
      call = set;
      break;
    }
    case kSaveState: {
      const int32_t slot = take_slot(r, limits);
      call = SaveState{slot, take_snapshot(r, limits)};
      break;
    }
    case kRestoreState: {
      const int32_t slot = take_slot(r, limits);
      call = RestoreState{take_snapshot(r, limits), slot};
      break;
    }
    case kCopyPage: {
      CopyPage copy;
      copy.group = take_group(r, limits);
      copy.from = take_page(r, limits, copy.group);
      copy.to = take_page(r, limits, copy.group);
      call = copy;
      break;
    }
    case kReserve:
      call = Reserve{take_segments(r, limits)};
      break;
    case kEnqueue:
      call = take_enqueue(r, limits);
      break;
    case kWait:
      call = Wait{};
      break;
    case kMasks:
      call = Masks{r.take_array<uint32_t>(kMostCallBytes / sizeof(uint32_t), "the masks")};
      break;
    case kEnd:
      call = End{};
      break;
    default:
      return invalid_argument("a message of an unknown kind came (" + std::to_string(frame.kind) + ")");
  }
  VOLLEY_RETURN_IF_ERROR(r.finish("a call"));
  return call;
}

}  // namespace volley::nodes
