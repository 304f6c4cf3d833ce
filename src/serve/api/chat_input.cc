#include "serve/api/chat_input.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "serve/api/sealed_text.h"
#include "serve/formats/answer_format.h"

namespace volley::serve {
namespace {

constexpr size_t kMaxPictureBytes = size_t{20} << 20;  // textkit's limit
constexpr size_t kMaxNamedBytes = size_t{64} << 20;    // of all pictures that a request names
constexpr std::chrono::seconds kMaxNamedTime{30};      // after which no further one is asked for

// Pictures of a request that it only names, so far.
struct Named {
  size_t bytes = 0;
  std::chrono::steady_clock::duration time{};
};

Error at(const std::string& where, const Error& error) {
  return {error.code, where + ": " + error.message + (error.message.ends_with('.') ? "" : ".")};
}

// Base64 may be wrapped in lines, and may lack its padding.
Result<std::string> file_of(const ChatPicture& picture, const ReadNamed& read_named, Named& named) {
  if (picture.is_file || !picture.url.starts_with("data:")) {
    const size_t most = std::min(kMaxPictureBytes, kMaxNamedBytes - named.bytes);
    if (most == 0 || named.time > kMaxNamedTime) {
      return invalid_argument(picture.where + ": the pictures before it that the request only names have taken " +
                              (most == 0 ? "64 MiB" : "30 s") +
                              ", which is the most: send the bytes, as \"data:image/png;base64,\" and Base64.");
    }
    const auto begin = std::chrono::steady_clock::now();
    auto file = read_named ? read_named(picture, most) : Result<std::string>(invalid_argument(kNotFetched));
    if (!file.ok()) return at(picture.where, file.error());
    named.bytes += file->size();
    named.time += std::chrono::steady_clock::now() - begin;
    return file;
  }
  std::string base64 = picture.url.substr(picture.url.find(',') + 1);
  // std::isspace is a call for each of millions of letters.
  std::erase_if(base64, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
  base64.append((4 - base64.size() % 4) % 4, '=');
  auto file = from_base64(base64);
  if (file && !file->empty()) return *std::move(file);
  return invalid_argument(picture.where + " must hold the picture's bytes in Base64.");
}

// Measures the pictures, which their files' headers suffice for.
Status measure(const Engine& engine, std::vector<ChatMessage>& messages, const ChatLimits& limits, ChatInput& input) {
  Named named;
  for (ChatMessage& message : messages) {
    for (const ChatPicture& picture : std::exchange(message.pictures, {})) {
      if (input.pictures.size() == kMaxPictures) {
        return invalid_argument(picture.where + " is one picture too many: a request may have " +
                                std::to_string(kMaxPictures) + ". Leave out earlier ones.");
      }
      VOLLEY_ASSIGN(std::string file, file_of(picture, limits.read_named, named));
      auto measured = engine.read_picture(file, false, {}, limits.cancelled);
      if (!measured.ok()) return at(picture.where, measured.error());
      input.pictures.push_back(std::move(*measured));
      input.sources.push_back({picture.where, std::move(file)});
    }
  }
  return {};
}

// Encodes a rendered text with marks before its pictures. The template alone writes between a mark and the next
// placeholder, so a user's letters are never taken for one.
class PictureText {
 public:
  PictureText(const Engine& engine, const AnswerFormat& format, bool add_special, EncodeLimits limits, ChatInput& out)
      : engine_(engine), format_(format), add_special_(add_special), limits_(limits), out_(out) {}

  Status encode() {
    const PictureRules& rules = *engine_.info().pictures;
    const std::string placeholder = engine_.decode({&rules.token, 1}, false), text = std::move(out_.text);
    size_t marks = 0, begin = 0;
    for (size_t at = text.find(kPictureMark); at != std::string::npos; at = text.find(kPictureMark, at + 1)) ++marks;
    if (marks > out_.pictures.size()) {
      return invalid_argument("A text beside pictures holds the character U+FDD1, which marks them: leave it out.");
    }
    for (PromptPicture& picture : out_.pictures) {
      const size_t mark = text.find(kPictureMark, begin), behind = mark + kPictureMark.size();
      const size_t place = mark == std::string::npos ? mark : text.find(placeholder, behind);
      if (place == std::string::npos || place > text.find(kPictureMark, behind)) {
        return invalid_argument("The model's chat template leaves out a picture: send it in another message.");
      }
      VOLLEY_RETURN_IF_ERROR(add(text.substr(begin, mark - begin) + text.substr(behind, place - behind)));
      picture.begin = static_cast<int32_t>(out_.ids.size());
      const int side = rules.token_side();
      out_.ids.insert(out_.ids.end(), size_t(picture.width / side) * size_t(picture.height / side), rules.token);
      out_.text += placeholder;
      begin = place + placeholder.size();
    }
    return add(text.substr(begin));
  }

 private:
  Status add(const std::string& piece) {
    out_.text += piece;
    if (piece.empty() || out_.ids.size() > limits_.max_tokens) return {};
    VOLLEY_ASSIGN(const auto ids, format_.encode(engine_, piece, std::exchange(add_special_, false), limits_));
    out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
    return {};
  }

  const Engine& engine_;
  const AnswerFormat& format_;
  bool add_special_;
  const EncodeLimits limits_;
  ChatInput& out_;
};

}  // namespace

Result<ChatInput> encode_chat(const Engine& engine, const AnswerFormat& format, Conversation chat,
                              bool add_special_tokens, const ChatLimits& limits) {
  ChatInput input;
  VOLLEY_RETURN_IF_ERROR(measure(engine, chat.messages, limits, input));
  VOLLEY_ASSIGN(input.text, format.render(engine, std::move(chat), limits.cancelled));
  if (input.pictures.empty()) {
    VOLLEY_ASSIGN(input.ids, format.encode(engine, input.text, add_special_tokens, limits));
    return input;
  }
  if (limits.last_tokens > 0) {
    return invalid_argument("A prompt with pictures cannot be cut: leave \"truncate_prompt_tokens\" out.");
  }
  VOLLEY_RETURN_IF_ERROR(PictureText(engine, format, add_special_tokens, limits, input).encode());
  return input;
}

Status read_pixels(const Engine& engine, ChatInput& input, std::string_view space, const std::atomic<bool>* cancelled) {
  for (size_t i = 0; i < input.sources.size(); ++i) {
    auto [where, file] = std::move(input.sources[i]);
    auto read = engine.read_picture(file, true, space, cancelled);
    if (!read.ok()) return at(where, read.error());
    input.pictures[i].rgb = std::move(read->rgb);
  }
  input.sources.clear();
  return {};
}

Result<ChatPrompt> chat_prompt(const Engine& engine, const AnswerFormat& format, Conversation chat,
                               const std::atomic<bool>* cancelled) {
  ChatLimits limits;
  limits.cancelled = cancelled;
  VOLLEY_ASSIGN(ChatInput input, encode_chat(engine, format, std::move(chat), false, limits));
  VOLLEY_RETURN_IF_ERROR(read_pixels(engine, input, {}, cancelled));
  return ChatPrompt{format.shown(input.text), std::move(input.ids), std::move(input.pictures)};
}

}  // namespace volley::serve
