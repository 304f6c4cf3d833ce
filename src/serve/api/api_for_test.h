// Helpers for tests of Api: requests, and answers read as a connection reads them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "serve/api/api.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"

namespace volley::serve {

using nlohmann::json;
using namespace std::chrono_literals;

inline std::string chat_with(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}

// Cuts the text into pieces of about this size. A step may bring any number of characters, but never half of one.
inline std::vector<std::string> cut(const std::string& text, size_t size) {
  std::vector<std::string> pieces;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = std::min(at + size, text.size());
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    pieces.push_back(text.substr(at, end - at));
  }
  return pieces;
}

class ApiTest : public ::testing::Test {
 protected:
  static ServerOptions make_options() {
    ServerOptions options;
    options.served_model_names = {"pocket", "org/alias"};
    return options;
  }
  // make_options() with one value changed.
  template <typename T>
  static ServerOptions with(T ServerOptions::*option, std::type_identity_t<T> value) {
    ServerOptions options = make_options();
    options.*option = std::move(value);
    return options;
  }

  struct Answer {
    std::optional<HttpResponse> response;
    std::string events;
    HttpHeaders headers;  // a stream's headers
    json body() const { return json::parse(response.value().body); }
  };

  static HttpRequest post(const std::string& path, const std::string& body) {
    return {"POST", path, "application/json", body};
  }

  // Reads to the end, as a connection does.
  Answer answer(Api& api, const HttpRequest& request) {
    std::mutex mutex;
    std::condition_variable changed;
    bool awake = false;
    auto reply = api.handle(request, [&] {
      const std::lock_guard lock(mutex);
      awake = true;
      changed.notify_all();
    });
    Answer result;
    if (auto* response = std::get_if<HttpResponse>(&reply)) {
      result.response = std::move(*response);
      return result;
    }
    const auto generation = std::get<std::shared_ptr<Generation>>(std::move(reply));
    while (true) {
      Generation::Output output = generation->take();
      result.events += output.events;
      if (!output.headers.empty()) result.headers = output.headers;
      if (output.response) result.response = std::move(output.response);
      if (output.done) break;
      std::unique_lock lock(mutex);
      if (!changed.wait_for(lock, 120s, [&] { return awake; })) {
        ADD_FAILURE() << "no news from the engine";
        break;
      }
      awake = false;
    }
    generation->abandon();  // the wake above refers to this frame
    return result;
  }

  Answer answer(const HttpRequest& request) { return answer(api_, request); }

  json ask(Api& api, const std::string& path, const json& body) {
    const Answer got = answer(api, post(path, body.dump()));
    EXPECT_EQ(got.response.value().status, 200) << got.response->body;
    return got.body();
  }

  // The last prompt that an engine got.
  static std::string prompt(const FakeEngine& engine) { return engine.decode(engine.submitted().back().prompt, false); }

  // A header of an answer; empty: not there.
  static std::string header(const HttpHeaders& headers, std::string_view wanted) {
    std::string value;
    for (const auto& [name, text] : headers) value += name == wanted ? text : "";
    return value;
  }

  static bool eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 120s;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }

  FakeEngine engine_;
  Api api_{engine_, make_options()};
};

inline constexpr const char* kChatPath = "/v1/chat/completions";
inline constexpr const char* kTextPath = "/v1/completions";

inline HttpRequest get(const std::string& path) {
  return {"GET", path, "", ""};
}

}  // namespace volley::serve
