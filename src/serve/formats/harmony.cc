#include "serve/formats/harmony.h"

#include <algorithm>
#include <utility>

#include "serve/formats/call_grammar.h"
#include "serve/formats/harmony_prompt.h"
#include "serve/formats/tool_call_scanner.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr std::array<std::string_view, kHarmonyMarks> kTexts = {
    "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"};
constexpr std::string_view kAssistant = "assistant";
constexpr std::string_view kAnalysis = "analysis";
constexpr std::string_view kTo = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr size_t kLongestSegment = 256;  // longest segment of a head

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

// Whether the text may name the assistant in a head: the name, and a recipient.
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

// Whether the text has several lines, which a head hardly has.
bool has_lines(std::string_view text) {
  text = skip_space(text);
  const size_t end = std::min(text.find_first_of("\r\n"), text.size());
  return !skip_space(text.substr(end)).empty();
}

// Tracks the place in a Harmony text: reads heads, and classifies bodies. A value: copies continue independently.
class HarmonyReader {
 public:
  enum class Part {
    kHead,       // not shown
    kReasoning,  // the body of a message on the channel "analysis"
    kContent,
    kCall,   // a call's arguments
    kOther,  // a message by another than the assistant
  };

  // The place of an output that follows this prompt. Without a prompt, between two messages.
  static HarmonyReader after(const Engine& engine, const HarmonyTokens& tokens, std::span<const TokenId> prompt) {
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

  // Takes text up to the next mark and returns text of part(): all of it in a body. A head returns nothing until it
  // shows that it is none, and then the held text.
  std::string text(std::string_view text) {
    if (part_ != Part::kHead) return std::string(text);
    // Reads byte by byte, so that the end of a head's attempt does not depend on the cuts.
    for (size_t i = 0; i < text.size(); ++i) {
      // Line ends between messages belong to the form.
      if (place_ == Place::kBetween && segment_.empty() && is_json_space(text[i])) continue;
      segment_ += text[i];
      if (!may_be_head()) return give_up().append(text.substr(i + 1));
    }
    return {};
  }

  // Returns text that was held for a head but is content; message() is then that content's.
  std::string mark(HarmonyMark mark) {
    std::string held;
    const bool ends = mark == HarmonyMark::kEnd || mark == HarmonyMark::kReturn || mark == HarmonyMark::kCall;
    if (ends || mark == HarmonyMark::kStart) {
      held = finish();
      begin_head(ends ? Place::kBetween : Place::kAuthor);
    } else if (part_ == Part::kHead) {
      end_segment();
      if (mark == HarmonyMark::kChannel) place_ = Place::kChannel;
      if (mark == HarmonyMark::kConstrain) place_ = Place::kConstraint;
      if (mark == HarmonyMark::kMessage) begin_body(part_of_head());
    } else if (mark == HarmonyMark::kChannel) {
      begin_head(Place::kChannel);
    }
    return held;
  }

  // Ends the output; returns as mark() does. Text without a control token before it, or with several lines, is content.
  std::string finish() {
    const bool nothing_marked =
        place_ == Place::kBetween || (place_ == Place::kAuthor && of_prompt_ > 0 && segment_.size() > of_prompt_);
    if (part_ != Part::kHead || segment_.empty() || !(nothing_marked || has_lines(segment_))) return {};
    return give_up();
  }

  Part part() const { return part_; }
  // Whether part()'s text is shown as thoughts. calls: calls are told from text.
  bool is_reasoning(bool calls) const {
    return part_ == Part::kReasoning || (part_ == Part::kCall && !calls && channel_ == kAnalysis);
  }

  // The called tool, without "functions.".
  const std::string& recipient() const { return recipient_; }
  int message() const { return message_; }  // counts bodies; text of one message has one number

 private:
  enum class Place { kBetween, kAuthor, kChannel, kConstraint };

  bool may_be_head() const {
    if (segment_.size() > kLongestSegment) return false;
    // Behind a control token a line end counts as a space, because some outputs have one there.
    if (place_ == Place::kBetween && std::ranges::any_of(segment_, is_line_end)) return false;
    if (place_ == Place::kChannel || place_ == Place::kConstraint || may_name_assistant(segment_)) return true;
    if (place_ == Place::kBetween) return false;
    std::string_view rest = segment_;
    const std::string_view author = next_word(rest);
    return !author.starts_with(kAssistant);
  }

  // Reads a part of a head.
  void end_segment() {
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
        foreign_ = word != kAssistant;  // a tool speaks, under its own name
      }
      first = false;
    }
    segment_.clear();
    of_prompt_ = 0;
  }

  Part part_of_head() const {
    if (foreign_) return Part::kOther;
    const bool calls = !recipient_.empty() && recipient_ != kAssistant && recipient_ != "user" && recipient_ != "all";
    return calls ? Part::kCall : channel_ == kAnalysis ? Part::kReasoning : Part::kContent;
  }

  void begin_body(Part part) {
    part_ = part;
    ++message_;
    segment_.clear();
    of_prompt_ = 0;
  }

  void begin_head(Place place) {
    part_ = Part::kHead;
    place_ = place;
    segment_.clear();
    of_prompt_ = 0;
    foreign_ = false;
    channel_.clear();
    recipient_.clear();
  }

  std::string give_up() {
    std::string held = std::exchange(segment_, {}).substr(of_prompt_);
    begin_body(Part::kContent);
    return held;
  }

  Part part_ = Part::kHead;
  Place place_ = Place::kBetween;  // in a head: the current segment
  std::string segment_;
  size_t of_prompt_ = 0;  // bytes of the segment in the prompt, which are never given back
  bool foreign_ = false;
  std::string channel_, recipient_;
  int message_ = 0;
};

// Counts the tokens of reasoning bodies. calls: see HarmonyReader::is_reasoning().
class HarmonyCounter final : public ThoughtCounter {
 public:
  HarmonyCounter(HarmonyTokens tokens, HarmonyReader start, bool calls)
      : marks_(tokens), reader_(std::move(start)), calls_(calls) {}

  void push(TokenId token, const TokenText& text) override {
    if (const auto mark = marks_.mark_of(token)) {
      reader_.mark(*mark);
    } else if (reader_.is_reasoning(calls_)) {
      ++tokens_;
    } else if (reader_.part() == HarmonyReader::Part::kHead) {
      reader_.text(text(token));
    }
  }

 private:
  HarmonyTokens marks_;
  HarmonyReader reader_;
  bool calls_;
};

class HarmonyStage final : public OutputStage {
 public:
  HarmonyStage(const OutputParser::Options& options, const HarmonyTokens& tokens, HarmonyReader start)
      : tokens_(tokens),
        calls_(options.format->calls()),
        shows_reasoning_(options.reasoning != ReasoningStart::kOff),
        in_order_(options.in_order),
        reader_(std::move(start)) {}

  void push(std::string_view text, OutputWriter& out) override {
    const std::string shown = reader_.text(text);
    if (!shown.empty()) add(shown, out);
  }

  void mark(TokenId token, OutputWriter& out) override {
    const auto mark = tokens_.mark_of(token);
    if (!mark) return;
    const std::string held = reader_.mark(*mark);
    if (call_ && (!in_call() || *call_ != reader_.message())) end_call(out);
    if (!held.empty()) add_text(held, reader_.message(), false, out);
    if (in_call()) begin_call(out);
  }

  void finish(TextEnd end, OutputWriter& out) override {
    const std::string held = reader_.finish();
    if (call_ && end == TextEnd::kModel) end_call(out);
    if (!held.empty()) add_text(held, reader_.message(), false, out);
  }

 private:
  bool in_call() const { return calls_ && reader_.part() == HarmonyReader::Part::kCall; }

  void begin_call(OutputWriter& out) {
    if (call_) return;
    call_ = reader_.message();
    behind_arguments_ = false;
    if (in_order_) last_reasoning_ = last_content_ = std::nullopt;
    out.begin_call(reader_.recipient());
  }

  void end_call(OutputWriter& out) {
    out.end_call();
    call_.reset();
  }

  // Text behind the arguments is content.
  void add_arguments(std::string_view text, OutputWriter& out) {
    if (!behind_arguments_) text = skip_space(text.substr(out.arguments(text)));
    if (text.empty()) return;
    behind_arguments_ = true;
    add_text(std::string(text), reader_.message(), false, out);
  }

  void add(const std::string& text, OutputWriter& out) {
    if (in_call()) {
      begin_call(out);
      add_arguments(text, out);
    } else if (reader_.part() != HarmonyReader::Part::kOther) {
      add_text(text, reader_.message(), reader_.is_reasoning(calls_) && shows_reasoning_, out);
    }
  }

  // Messages of one kind become paragraphs of one text.
  void add_text(const std::string& text, int message, bool reasoning, OutputWriter& out) {
    std::optional<int>& last = reasoning ? last_reasoning_ : last_content_;
    const std::string paragraph = (last && *last != message ? "\n" : "") + text;
    last = message;
    if (in_order_) (reasoning ? last_content_ : last_reasoning_).reset();
    if (reasoning) {
      out.reasoning(paragraph);
    } else {
      out.content(paragraph);
    }
  }

  const HarmonyTokens tokens_;
  const bool calls_, shows_reasoning_, in_order_;
  HarmonyReader reader_;
  std::optional<int> call_;        // message number of the open call
  bool behind_arguments_ = false;  // text came behind the arguments
  std::optional<int> last_reasoning_, last_content_;
};

class HarmonyFormat final : public AnswerFormat {
 public:
  HarmonyFormat(const HarmonyTokens& tokens, bool preambles)
      : AnswerFormat(true), tokens_(tokens), preambles_(preambles) {}

  std::shared_ptr<const AnswerFormat> without_calls() const override {
    auto same = std::make_shared<HarmonyFormat>(*this);
    same->calls_ = false;
    return same;
  }

  std::shared_ptr<const AnswerFormat> after(const Engine& engine, std::span<const TokenId> prompt) const override {
    auto same = std::make_shared<HarmonyFormat>(*this);
    same->start_ = HarmonyReader::after(engine, tokens_, prompt);
    return same;
  }

  Status check(const Conversation& chat) const override { return check_harmony(chat); }
  Result<std::string> render(const Engine& engine, Conversation chat,
                             const std::atomic<bool>* cancelled) const override {
    return render_harmony(engine, std::move(chat), preambles_, cancelled);
  }
  Result<std::vector<TokenId>> encode(const Engine& engine, std::string_view rendered, bool,
                                      const EncodeLimits& limits) const override {
    return encode_harmony(engine, tokens_, rendered, limits);
  }
  std::string shown(std::string_view rendered) const override { return unmarked(rendered); }

  ReasoningStart start(bool, std::string_view, std::string_view) const override {
    if (start_.part() == HarmonyReader::Part::kReasoning) return ReasoningStart::kOpen;
    return start_.part() == HarmonyReader::Part::kHead ? ReasoningStart::kClosed : ReasoningStart::kOff;
  }

  // Stop strings count in content alone. <|return|> and <|call|> end the turn, even if no file of the checkpoint says
  // so.
  void plan(bool thoughts, GenerateRequest& request, OutputParser::Options& options) const override {
    // Only a grammar on the whole text begins an answer without a head.
    const bool headless =
        request.grammar && request.grammar->lead.empty() && start_.part() == HarmonyReader::Part::kHead;
    TextParts& parts = request.parts.emplace();
    parts.marks.assign(tokens_.ids().begin(), tokens_.ids().end());
    parts.stops_count_at_start = headless || start_.part() == HarmonyReader::Part::kContent;
    parts.stops_count = [tokens = tokens_, reader = start_](TokenId token, std::string_view before) mutable {
      reader.text(before);
      if (const auto mark = tokens.mark_of(token)) reader.mark(*mark);
      return reader.part() == HarmonyReader::Part::kContent;
    };
    for (const TokenId end : end_tokens()) {
      std::vector<TokenId>& ids = request.stop_token_ids;
      if (!request.ignore_eos && std::ranges::find(ids, end) == ids.end()) ids.push_back(end);
    }
    options.reasoning = thoughts ? ReasoningStart::kClosed : ReasoningStart::kOff;
  }

  std::unique_ptr<OutputStage> whole_stage(const OutputParser::Options& options) const override {
    return std::make_unique<HarmonyStage>(options, tokens_, start_);
  }

  std::unique_ptr<ThoughtCounter> counter(ReasoningStart) const override {
    return std::make_unique<HarmonyCounter>(tokens_, start_, calls());
  }

  std::span<const TokenId> marks() const override { return tokens_.ids(); }
  std::vector<TokenId> end_tokens() const override {
    return {tokens_.id_of(HarmonyMark::kReturn), tokens_.id_of(HarmonyMark::kCall)};
  }

  // Messages of thoughts, then the next message's head. If the prompt ended in a body (kOpen: of thoughts, kOff: of the
  // answer), that body ends first.
  ThinkRules think_rules(ReasoningStart start, bool) const override {
    const std::string body = terminal(HarmonyMark::kMessage) + "/(?s:.+)/? ";
    const std::string next = terminal(HarmonyMark::kEnd) + terminal(HarmonyMark::kStart) + "\"assistant\" ";
    ThinkRules think;
    think.start = start == ReasoningStart::kClosed ? "thought* " : "/(?s:.+)/? " + next + "thought* ";
    think.rules = "thought: " + terminal(HarmonyMark::kChannel) + "\"analysis\" " + body + next + "\n";
    think.answer = terminal(HarmonyMark::kChannel) + "\"final\" " + terminal(HarmonyMark::kMessage);
    return think;
  }

  // A call ends the answer, so there is at most one. Free text may come before it.
  std::string answer_rule(CallGrammar& grammar) const override {
    using Answer = CallGrammar::Answer;
    const std::string channel = terminal(HarmonyMark::kChannel);
    grammar.rules += "call: " + channel + "object\n";
    if (grammar.answer == Answer::kNone) return "call";
    grammar.rules += "preamble: " + channel + "\"commentary\" " + terminal(HarmonyMark::kMessage) + "/(?s:.+)/? " +
                     terminal(HarmonyMark::kEnd) + terminal(HarmonyMark::kStart) + "\"assistant\"\n";
    if (grammar.answer == Answer::kRule) return "((preamble thought*)* call | " + grammar.think.answer + "text)";
    return "(preamble thought*)* (call | " + grammar.think.answer + "/(?s:.+)/?)";
  }

  std::string call_rule(const Tool& tool, const std::string& arguments) const override {
    return json_quote("commentary to=functions." + tool.name + " ") + " " + terminal(HarmonyMark::kConstrain) +
           "\"json\" " + terminal(HarmonyMark::kMessage) + arguments;
  }

 private:
  std::string terminal(HarmonyMark mark) const { return token_terminal(tokens_.id_of(mark)) + " "; }

  HarmonyTokens tokens_;
  bool preambles_;
  HarmonyReader start_;  // the place where an output begins
};

constexpr const char* kPreamble = R"([
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "volley_answer", "thinking": "volley_thought", "tool_calls": [
     {"id": "call00000", "type": "function", "function": {"name": "volley_probe", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "call00000", "name": "volley_probe", "content": "Done."}])";

bool prints_harmony(const FormatProbe& probe) {
  return probe.ask.find("<|start|>user<|message|>") != std::string::npos &&
         trim_end(probe.ask).ends_with("<|start|>assistant");
}

Result<std::shared_ptr<const AnswerFormat>> make_harmony(const FormatProbe& probe) {
  std::string missing;
  const auto tokens = HarmonyTokens::find(probe.engine, missing);
  if (!tokens) {
    return failed_precondition("The model's answers are in the Harmony format, but its tokenizer.json has no token " +
                               missing + ", which the format needs: use the checkpoint's own tokenizer, or set " +
                               "--tool-call-parser and --reasoning-parser to none to get the text as it is.");
  }
  const bool preambles = !probe.render(kPreamble, kProbeTools, "", true).empty();
  return harmony_answers(*tokens, preambles);
}

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

std::shared_ptr<const AnswerFormat> harmony_answers(const HarmonyTokens& tokens, bool preambles) {
  return std::make_shared<const HarmonyFormat>(tokens, preambles);
}

extern const AnswerFormatKind kHarmonyFormat{
    {"harmony", "openai", "gpt-oss"}, {"harmony", "openai_gptoss", "gpt-oss"}, prints_harmony, make_harmony};

}  // namespace volley::serve
