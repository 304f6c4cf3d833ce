// Joins a stream as each API's clients do; fails where the official clients refuse it.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace volley::serve {

inline std::vector<nlohmann::json> stream_data(const std::string& stream) {
  std::vector<nlohmann::json> data;
  for (size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos;) {
    const size_t end = stream.find("\n\n", at);
    data.push_back(nlohmann::json::parse(stream.substr(at + 6, end - at - 6)));
    at = end;
  }
  return data;
}

inline void append_text(nlohmann::json& to, const nlohmann::json& more) {
  to = to.get<std::string>() + more.get<std::string>();
}

// A chat's message: its content, and its calls as in a whole answer, without ids.
inline nlohmann::json built_chat(const std::string& stream) {
  nlohmann::json content = "", calls = nlohmann::json::array();
  for (const nlohmann::json& chunk : stream_data(stream)) {
    const nlohmann::json& delta = chunk.at("choices").at(0).at("delta");
    if (delta.value("content", nlohmann::json()).is_string()) append_text(content, delta.at("content"));
    for (const nlohmann::json& call : delta.value("tool_calls", nlohmann::json::array())) {
      if (call.contains("id"))
        calls.push_back({{"type", call.at("type")}, {call.at("type"), nlohmann::json::object()}});
      EXPECT_EQ(call.at("index"), calls.size() - 1);
      const std::string type = calls.back().at("type");
      for (const auto& [name, text] : call.at(type).items()) {
        nlohmann::json& member = calls.back()[type][name];
        if (member.is_null()) member = "";
        append_text(member, text);
      }
    }
  }
  return {{"content", content}, {"calls", calls}};
}

// The same for a whole answer.
inline nlohmann::json whole_chat(const nlohmann::json& body) {
  const nlohmann::json& message = body.at("choices").at(0).at("message");
  nlohmann::json calls = message.value("tool_calls", nlohmann::json::array());
  for (nlohmann::json& call : calls) {
    EXPECT_FALSE(call.at("id").get<std::string>().empty());
    call.erase("id");
  }
  return {{"content", message.at("content").is_null() ? "" : message.at("content")}, {"calls", calls}};
}

// The blocks of a Messages API answer.
inline nlohmann::json built_message(const std::string& stream) {
  nlohmann::json blocks = nlohmann::json::array();
  std::string input;
  bool open = false;
  for (const nlohmann::json& event : stream_data(stream)) {
    const std::string type = event.at("type");
    if (type == "content_block_start") {
      EXPECT_FALSE(std::exchange(open, true));
      EXPECT_EQ(event.at("index"), blocks.size());
      blocks.push_back(event.at("content_block"));
      input.clear();
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open && event.at("index") == blocks.size() - 1);
      nlohmann::json& block = blocks.back();
      const nlohmann::json& delta = event.at("delta");
      const std::string kind = delta.at("type");
      if (kind == "text_delta") append_text(block["text"], delta.at("text"));
      if (kind == "thinking_delta") append_text(block["thinking"], delta.at("thinking"));
      if (kind == "signature_delta") block["signature"] = delta.at("signature");
      if (kind == "input_json_delta") {
        EXPECT_EQ(block.at("type"), "tool_use");
        input += delta.at("partial_json").get<std::string>();
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(std::exchange(open, false));
      if (blocks.back().at("type") == "tool_use") {
        EXPECT_FALSE(blocks.back().at("id").get<std::string>().empty());
        blocks.back()["input"] = nlohmann::json::parse(input);
      }
    }
  }
  EXPECT_FALSE(open);
  return blocks;
}

// The items of a Responses API answer: each as it is added, and as its end says.
inline nlohmann::json built_response(const std::string& stream) {
  nlohmann::json items = nlohmann::json::array();
  std::string text;
  for (const nlohmann::json& event : stream_data(stream)) {
    const std::string type = event.at("type");
    if (type == "response.output_item.added") {
      EXPECT_EQ(event.at("output_index"), items.size());
      items.push_back(event.at("item"));
      text.clear();
    } else if (type.ends_with(".delta")) {
      EXPECT_EQ(event.at("output_index"), items.size() - 1);
      EXPECT_EQ(event.at("item_id"), items.back().at("id"));
      text += event.at("delta").get<std::string>();
    } else if (type == "response.custom_tool_call_input.done") {
      EXPECT_EQ(event.at("input"), text);
      EXPECT_EQ(items.back().at("type"), "custom_tool_call");
      EXPECT_EQ(items.back().at("input"), "");
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event.at("arguments"), text);
      EXPECT_EQ(items.back().at("type"), "function_call");
      EXPECT_FALSE(event.at("name").get<std::string>().empty());
    } else if (type == "response.output_item.done") {
      items.back() = event.at("item");
    } else if (type == "response.completed" || type == "response.incomplete") {
      EXPECT_EQ(event.at("response").at("output"), items);
    }
  }
  return items;
}

}  // namespace volley::serve
