// A chat as the model reads it: tokens and pictures. Functions are slow for long chats.
#pragma once

#include <volley/chat.h>
#include <volley/engine.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/conversation.h"

namespace volley::serve {

class AnswerFormat;

inline constexpr size_t kMaxPictures = 16;  // of a request

struct ChatInput {
  std::string text;  // as the template rendered it
  std::vector<TokenId> ids;
  std::vector<PromptPicture> pictures;  // without their pixels: see read_pixels()

  // For read_pixels(): each picture's place in the request and its file.
  struct Source {
    std::string where, file;
  };
  std::vector<Source> sources;
};

// Reads the bytes of a picture that a request only names, at most so many. Errors are about the picture.
using ReadNamed = std::function<Result<std::string>(const ChatPicture& picture, size_t most_bytes)>;
struct ChatLimits : EncodeLimits {
  ReadNamed read_named = {};  // null: such pictures are refused
};
inline constexpr const char* kNotFetched =
    "the picture is elsewhere, and none is fetched here: send its bytes, as \"data:image/png;base64,\" and Base64";

// Renders the chat and encodes it. A picture's placeholder becomes as many tokens as the picture has; the same letters
// in a text are no picture. Errors as render() and encode() of the format; kInvalidArgument for pictures names their
// place.
Result<ChatInput> encode_chat(const Engine& engine, const AnswerFormat& format, Conversation chat,
                              bool add_special_tokens, const ChatLimits& limits);

// Decodes the pictures and frees their files. space: a cache_namespace. `cancelled` may be null. Errors as
// Engine::read_picture().
Status read_pixels(const Engine& engine, ChatInput& input, std::string_view space, const std::atomic<bool>* cancelled);

// Both in one, for people and the engine.
Result<ChatPrompt> chat_prompt(const Engine& engine, const AnswerFormat& format, Conversation chat,
                               const std::atomic<bool>* cancelled);

}  // namespace volley::serve
