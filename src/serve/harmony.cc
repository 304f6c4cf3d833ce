#include "serve/harmony.h"

#include <algorithm>
#include <utility>

#include "serve/tool_call_scanner.h"
#include "serve/tool_call_stages.h"

namespace volley::serve {
namespace {

constexpr std::array<std::string_view, kHarmonyMarks> kTexts = {
    "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"};
constexpr std::string_view kAssistant = "assistant";
constexpr std::string_view kAnalysis = "analysis";
constexpr std::string_view kTo = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr size_t kLongestSegment = 256;  // of a head

std::string_view skip_space(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

// Takes the first word off a text.
std::string_view next_word(std::string_view& text) {
  text = skip_space(text);
  const size_t end = std::min(text.find_first_of(" \t\r\n"), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

bool one_begins_other(std::string_view a, std::string_view b) {
  return a.starts_with(b) || b.starts_with(a);
}

// What may stand where a head names the assistant: that, and a recipient.
bool may_name_assistant(std::string_view text) {
  text = skip_space(text);
  if (text.size() < kAssistant.size()) return kAssistant.starts_with(text);
  if (!text.starts_with(kAssistant)) return false;
  text.remove_prefix(kAssistant.size());
  return text.empty() || (is_json_space(text.front()) && one_begins_other(skip_space(text), kTo));
}

bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

// Text in several lines, which a head hardly is.
bool has_lines(std::string_view text) {
  text = skip_space(text);
  const size_t end = std::min(text.find_first_of("\r\n"), text.size());
  return !skip_space(text.substr(end)).empty();
}

class HarmonyStage final : public OutputStage {
 public:
  explicit HarmonyStage(const OutputParser::Options& options)
      : calls_(options.tools != ToolFormat::kNone),
        shows_reasoning_(options.reasoning != ReasoningStart::kOff),
        in_order_(options.in_order),
        reader_(*options.harmony),
        writer_(options.call_id_prefix) {}

  void push(std::string_view text, OutputDelta& out) override {
    const std::string shown = reader_.text(text);
    if (!shown.empty()) add(shown, out);
  }

  void mark(HarmonyMark mark, OutputDelta& out) override {
    const std::string held = reader_.mark(mark);
    if (call_ && (!in_call() || *call_ != reader_.message())) end_call(out);
    if (!held.empty()) add_text(held, reader_.message(), false, out);
    if (in_call()) begin_call(out);
  }

  void finish(OutputDelta& out) override {
    const std::string held = reader_.finish();
    if (call_) end_call(out);
    if (!held.empty()) add_text(held, reader_.message(), false, out);
  }

 private:
  bool in_call() const { return calls_ && reader_.part() == HarmonyReader::Part::kCall; }

  void begin_call(OutputDelta& out) {
    if (call_) return;
    call_ = reader_.message();
    no_arguments_ = true;
    if (in_order_) last_reasoning_ = last_content_ = std::nullopt;
    writer_.announce(reader_.recipient(), out);
  }

  // Clients parse the arguments: none at all are no JSON.
  void end_call(OutputDelta& out) {
    if (no_arguments_) writer_.add_arguments("{}", out);
    no_arguments_ = false;
    call_.reset();
  }

  void add(const std::string& text, OutputDelta& out) {
    if (in_call()) {
      begin_call(out);
      no_arguments_ = false;
      writer_.add_arguments(text, out);
    } else if (reader_.part() != HarmonyReader::Part::kOther) {
      add_text(text, reader_.message(), reader_.is_reasoning(calls_) && shows_reasoning_, out);
    }
  }

  // Messages of one kind are paragraphs of one text.
  void add_text(const std::string& text, int message, bool reasoning, OutputDelta& out) {
    std::string& to = reasoning ? out.reasoning : out.content;
    std::optional<int>& last = reasoning ? last_reasoning_ : last_content_;
    if (last && *last != message) to += '\n';
    last = message;
    if (in_order_) (reasoning ? last_content_ : last_reasoning_).reset();
    to += text;
  }

  const bool calls_, shows_reasoning_, in_order_;
  HarmonyReader reader_;
  CallWriter writer_;
  std::optional<int> call_;  // the message of the call that is open
  bool no_arguments_ = false;
  std::optional<int> last_reasoning_, last_content_;
};

}  // namespace

std::string_view HarmonyTokens::text_of(HarmonyMark mark) {
  return kTexts[static_cast<size_t>(mark)];
}

std::span<const std::string_view> HarmonyTokens::texts() {
  return kTexts;
}

std::optional<HarmonyTokens> HarmonyTokens::find(const Engine& engine, std::string& missing) {
  std::array<TokenId, kHarmonyMarks> found{};
  for (size_t i = 0; i < kHarmonyMarks; ++i) {
    const auto ids = engine.encode(kTexts[i], /*add_special_tokens=*/false);
    if (!ids.ok() || ids->size() != 1 || engine.decode(*ids, /*skip_special_tokens=*/false) != kTexts[i]) {
      missing = kTexts[i];
      return std::nullopt;
    }
    found[i] = ids->front();
  }
  return HarmonyTokens(found);
}

std::optional<HarmonyMark> HarmonyTokens::mark_of(TokenId token) const {
  const auto found = std::ranges::find(ids_, token);
  if (found == ids_.end()) return std::nullopt;
  return static_cast<HarmonyMark>(found - ids_.begin());
}

HarmonyReader HarmonyReader::after(const Engine& engine, const HarmonyTokens& tokens, std::span<const TokenId> prompt) {
  HarmonyReader reader;
  const auto last = std::find(prompt.rbegin(), prompt.rend(), tokens.id_of(HarmonyMark::kStart));
  std::vector<TokenId> segment;
  const auto read_segment = [&] {
    if (!segment.empty()) reader.text(engine.decode(segment, false));
    segment.clear();
  };
  for (const TokenId token : prompt.subspan(static_cast<size_t>(prompt.rend() - last) - (last != prompt.rend()))) {
    if (const auto mark = tokens.mark_of(token)) {
      read_segment();
      reader.mark(*mark);
    } else if (reader.part_ == Part::kHead) {
      segment.push_back(token);
    }
  }
  read_segment();
  reader.of_prompt_ = reader.segment_.size();
  return reader;
}

bool HarmonyReader::may_be_head() const {
  if (segment_.size() > kLongestSegment) return false;
  // Behind a control token a line end is a space, as some outputs have one before the next token.
  if (place_ == Place::kBetween && std::ranges::any_of(segment_, is_line_end)) return false;
  if (place_ == Place::kChannel || place_ == Place::kConstraint || may_name_assistant(segment_)) return true;
  if (place_ == Place::kBetween) return false;
  std::string_view rest = segment_;
  const std::string_view author = next_word(rest);
  return !author.starts_with(kAssistant);
}

std::string HarmonyReader::give_up() {
  std::string held = std::exchange(segment_, {}).substr(of_prompt_);
  begin_body(Part::kContent);
  return held;
}

void HarmonyReader::begin_body(Part part) {
  part_ = part;
  ++message_;
  segment_.clear();
  of_prompt_ = 0;
}

void HarmonyReader::begin_head(Place place) {
  part_ = Part::kHead;
  place_ = place;
  segment_.clear();
  of_prompt_ = 0;
  foreign_ = false;
  channel_.clear();
  recipient_.clear();
}

std::string HarmonyReader::text(std::string_view text) {
  if (part_ != Part::kHead) return std::string(text);
  // Byte by byte: where a head turns out to be none must not depend on how the text was cut.
  for (size_t i = 0; i < text.size(); ++i) {
    // Line ends between messages belong to the form.
    if (place_ == Place::kBetween && segment_.empty() && is_json_space(text[i])) continue;
    segment_ += text[i];
    if (!may_be_head()) return give_up().append(text.substr(i + 1));
  }
  return {};
}

// What a part of a head says.
void HarmonyReader::end_segment() {
  std::string_view rest = segment_;
  bool first = true;
  for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
    if (word.starts_with(kTo)) {
      word.remove_prefix(kTo.size());
      if (word.starts_with(kFunctions)) word.remove_prefix(kFunctions.size());
      recipient_ = word;
    } else if (first && place_ == Place::kChannel) {
      channel_ = word;
    } else if (first && place_ == Place::kAuthor) {
      foreign_ = word != kAssistant;  // also a tool, by whatever name
    }
    first = false;
  }
  segment_.clear();
  of_prompt_ = 0;
}

std::string HarmonyReader::mark(HarmonyMark mark) {
  std::string held;
  switch (mark) {
    case HarmonyMark::kStart:
      held = finish();
      begin_head(Place::kAuthor);
      return held;
    case HarmonyMark::kEnd:
    case HarmonyMark::kReturn:
    case HarmonyMark::kCall:
      held = finish();
      begin_head(Place::kBetween);
      return held;
    case HarmonyMark::kChannel:
      if (part_ == Part::kHead) {
        end_segment();
        place_ = Place::kChannel;
      } else {
        begin_head(Place::kChannel);
      }
      return held;
    case HarmonyMark::kConstrain:
      if (part_ != Part::kHead) return held;
      end_segment();
      place_ = Place::kConstraint;
      return held;
    case HarmonyMark::kMessage:
      break;
  }
  if (part_ != Part::kHead) return held;
  end_segment();
  const bool call = !recipient_.empty() && recipient_ != kAssistant && recipient_ != "user" && recipient_ != "all";
  begin_body(foreign_ ? Part::kOther : call ? Part::kCall : channel_ == kAnalysis ? Part::kReasoning : Part::kContent);
  return held;
}

bool HarmonyReader::is_reasoning(bool calls) const {
  return part_ == Part::kReasoning || (part_ == Part::kCall && !calls && channel_ == kAnalysis);
}

// Without a control token before it, or in several lines, text that is no head was none.
std::string HarmonyReader::finish() {
  const bool nothing_marked =
      place_ == Place::kBetween || (place_ == Place::kAuthor && of_prompt_ > 0 && segment_.size() > of_prompt_);
  if (part_ != Part::kHead || segment_.empty() || !(nothing_marked || has_lines(segment_))) return {};
  return give_up();
}

std::unique_ptr<OutputStage> harmony_stage(const OutputParser::Options& options) {
  return std::make_unique<HarmonyStage>(options);
}

ReasoningStart reasoning_start(const HarmonyReader& start) {
  switch (start.part()) {
    case HarmonyReader::Part::kReasoning:
      return ReasoningStart::kOpen;
    case HarmonyReader::Part::kHead:
      return ReasoningStart::kClosed;
    default:
      return ReasoningStart::kOff;
  }
}

void plan_harmony(const HarmonyTokens& tokens, std::shared_ptr<const HarmonyReader> start, bool reasoning,
                  GenerateRequest& request, OutputParser::Options& options) {
  // Only a grammar on everything has an answer begin without a head.
  const bool headless = request.grammar && request.grammar->lead.empty() && start->part() == HarmonyReader::Part::kHead;
  TextParts& parts = request.parts.emplace();
  parts.marks.assign(tokens.ids().begin(), tokens.ids().end());
  parts.stops_count_at_start = headless || start->part() == HarmonyReader::Part::kContent;
  parts.stops_count = [tokens, reader = *start](TokenId token, std::string_view before) mutable {
    reader.text(before);
    if (const auto mark = tokens.mark_of(token)) reader.mark(*mark);
    return reader.part() == HarmonyReader::Part::kContent;
  };
  for (const HarmonyMark mark : {HarmonyMark::kReturn, HarmonyMark::kCall}) {
    std::vector<TokenId>& ids = request.stop_token_ids;
    if (request.ignore_eos || std::ranges::find(ids, tokens.id_of(mark)) != ids.end()) continue;
    ids.push_back(tokens.id_of(mark));
  }
  options.reasoning = reasoning ? ReasoningStart::kClosed : ReasoningStart::kOff;
  options.harmony = std::move(start);
}

}  // namespace volley::serve
