#include "serve/messages/messages_blocks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/api/chat_messages.h"
#include "serve/api/sealed_text.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr std::string_view kTexts[] = {"text"};
constexpr PartTypes::LeftOut kPictures[] = {{"image", "image"}, {"document", "document"}};
constexpr std::string_view kSupported = "Only text, tools of the client's and thinking are supported.";
// Claude Code's first line of instructions, for Anthropic's own accounts. It differs between conversations, so that
// their prompts would have no prefix in common.
constexpr std::string_view kBilling = "x-anthropic-billing-header:";

class MessageReader {
 public:
  MessageReader(FieldReader& in, bool sees, ChatTurns& turns, MessagesTools& tools, Notes& notes)
      : in_(in), sees_(sees), turns_(turns), tools_(tools), notes_(notes) {}

  bool read(const json& list, std::string_view raw) {
    const std::vector<std::string_view> texts = array_elements(raw);
    for (size_t i = 0; i < list.size(); ++i) {
      if (!read_message(list.at(i), texts[i], "messages[" + std::to_string(i) + "]")) return false;
    }
    return true;
  }

 private:
  enum class Role { kUser, kAssistant, kSystem };

  bool read_message(const json& message, std::string_view raw, const std::string& where) {
    if (!message.is_object()) return wrong(where + " must be an object, not " + excerpt(message) + ".");
    const json role = message.value("role", json());
    if (role == "user") {
      role_ = Role::kUser;
    } else if (role == "assistant") {
      role_ = Role::kAssistant;
    } else if (role == "system") {
      role_ = Role::kSystem;
    } else {
      return wrong(where + R"(.role must be "user", "assistant" or "system", not )" + excerpt(role) + ".");
    }
    has_text_ = false;
    const auto content = message.find("content");
    if (content != message.end() && content->is_string()) {
      add_text(content->get<std::string>());
    } else if (content != message.end() && content->is_array()) {
      const std::vector<std::string_view> blocks = array_elements(find_member(raw, "content"));
      for (size_t i = 0; i < content->size(); ++i) {
        if (!read_block(content->at(i), blocks[i], where + ".content[" + std::to_string(i) + "]")) return false;
      }
    } else {
      return wrong(where + ".content must be a text or a list of blocks.");
    }
    end_text();
    return true;
  }

  bool read_block(const json& block, std::string_view raw, const std::string& where) {
    const std::string type = text_member(block, "type");
    switch (role_) {
      case Role::kUser:
        if (type == "tool_result") return read_result(block, where);
        break;
      case Role::kAssistant:
        if (type == "tool_use") return read_call(block, raw, where);
        if (type == "thinking") return read_thought(block, where);
        if (type == "redacted_thinking") return true;  // encrypted by another service, so it has no readable text
        break;
      case Role::kSystem:
        if (type == "tool_addition" || type == "tool_removal") return read_tool_change(block, raw, where);
        break;
    }
    if (is_foreign(type) && role_ != Role::kSystem) {
      note_foreign(type, notes_);
      if (role_ == Role::kAssistant) {
        end_text();
        turns_.remarked(foreign_text(block));
      } else {
        add_text(foreign_text(block));
      }
      return true;
    }
    std::string text;
    const PartTypes types{"messages", kSupported, kTexts, {}, sees_ && role_ == Role::kUser ? &pictures_ : nullptr};
    if (!read_part(in_, types, block, where, notes_, text)) return false;
    add_text(std::move(text));
    return true;
  }

  // "server_tool_use", "web_search_tool_result" and so on.
  static bool is_foreign(std::string_view type) {
    const bool named = type.ends_with("_tool_use") || type.ends_with("_tool_result") || type == "container_upload" ||
                       type == "compaction";
    return named && is_hosted_type(type, {type});
  }

  bool read_result(const json& block, const std::string& where) {
    std::string id, text;
    if (!read_string(block, "tool_use_id", where, id)) return false;
    const json content = block.value("content", json());
    std::vector<ChatPicture> pictures;
    const auto read_block = [&](const json& part, const std::string& at, std::string& out) {
      return read_result_block(part, at, pictures, out);
    };
    if (!content.is_null() && !read_parts(in_, "messages", content, where + ".content", text, read_block)) return false;
    end_text();
    turns_.tool_result(std::move(id), std::move(text), std::move(pictures));
    return true;
  }

  // Appends a block of a result. A reference names a deferred tool that the client's search found.
  bool read_result_block(const json& block, const std::string& where, std::vector<ChatPicture>& pictures,
                         std::string& out) {
    if (text_member(block, "type") != "tool_reference") {
      const PartTypes types{"messages", kSupported, kTexts, kPictures, sees_ ? &pictures : nullptr};
      return read_part(in_, types, block, where, notes_, out);
    }
    std::string name;
    if (!read_string(block, "tool_name", where, name)) return false;
    out += "The tool " + json_quote(name) + (tools_.load(name) ? " can be called now." : " is not available.");
    return true;
  }

  bool read_tool_change(const json& block, std::string_view raw, const std::string& where) {
    const json tool = block.value("tool", json());
    const std::string at = where + ".tool";
    if (text_member(tool, "type") == "tool_definition" && text_member(block, "type") == "tool_addition") {
      return tools_.define(tool.value("definition", json()), find_member(find_member(raw, "tool"), "definition"),
                           "messages", at + ".definition");
    }
    if (text_member(tool, "type") != "tool_reference") {
      return wrong(at + R"( must be an object of the "type" "tool_reference" or, in an addition, )"
                        R"("tool_definition".)");
    }
    std::string name;
    if (!read_string(tool, "name", at, name)) return false;
    if (text_member(block, "type") == "tool_removal") {
      tools_.unload(name);
      return true;
    }
    return tools_.load(name) ||
           wrong(at + ".name must be that of one of the \"tools\", not " + excerpt(tool.at("name")) + ".");
  }

  bool read_call(const json& block, std::string_view raw, const std::string& where) {
    std::string id, name;
    if (!read_string(block, "id", where, id) || !read_string(block, "name", where, name)) return false;
    const json input = block.value("input", json());
    const bool says_nothing = input.is_null() || input == "";
    if (!says_nothing && !input.is_object()) return wrong(where + ".input must be an object.");
    end_text();
    turns_.called(id, name, says_nothing ? "{}" : find_member(raw, "input"));
    return true;
  }

  bool read_thought(const json& block, const std::string& where) {
    std::string thought;
    if (!read_string(block, "thinking", where, thought)) return false;
    const json signature = block.value("signature", json());
    if (thought.empty() && signature.is_string()) {
      thought = unseal_text(signature.get_ref<const std::string&>()).value_or("");
    }
    end_text();
    if (!thought.empty()) turns_.thought(thought);
    return true;
  }

  // Consecutive texts become one.
  void add_text(std::string text) {
    if (std::exchange(has_text_, true)) {
      append_part(text_, text);
    } else {
      text_ = std::move(text);
    }
  }

  void end_text() {
    if (!std::exchange(has_text_, false)) return;
    switch (role_) {
      case Role::kUser:
        return turns_.user(std::move(text_), std::exchange(pictures_, {}));
      case Role::kAssistant:
        return turns_.said(text_);
      case Role::kSystem:
        if (!text_.empty()) turns_.system(text_);
        return;
    }
  }

  bool read_string(const json& block, const char* name, const std::string& where, std::string& out) {
    const auto found = block.find(name);
    if (found == block.end() || !found->is_string()) return wrong(where + "." + name + " must be a string.");
    out = found->get<std::string>();
    return true;
  }

  bool wrong(std::string message) {
    in_.fail(invalid_field("messages", std::move(message)));
    return false;
  }

  FieldReader& in_;
  const bool sees_;
  ChatTurns& turns_;
  MessagesTools& tools_;
  Notes& notes_;
  Role role_ = Role::kUser;  // the current message's role
  bool has_text_ = false;
  std::string text_;
  std::vector<ChatPicture> pictures_;  // of text_
};

}  // namespace

bool read_system(FieldReader& in, const json& system, ChatTurns& turns) {
  std::string text;
  Notes none;
  const auto read_block = [&](const json& block, const std::string& where, std::string& out) {
    return read_part(in, {"system", kSupported, kTexts}, block, where, none, out);
  };
  if (!read_parts(in, "system", system, "system", text, read_block)) return false;
  if (text.starts_with(kBilling)) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  if (!text.empty()) turns.system(text);
  return true;
}

bool read_message_list(FieldReader& in, const json& messages, std::string_view raw, bool sees, ChatTurns& turns,
                       MessagesTools& tools, Notes& notes) {
  return MessageReader(in, sees, turns, tools, notes).read(messages, raw);
}

}  // namespace volley::serve
