// What the tests of Api share: requests, and answers taken as a connection takes them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "serve/api.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"

namespace volley::serve {

using nlohmann::json;
using namespace std::chrono_literals;

inline std::string chat_with(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}

class ApiTest : public ::testing::Test {
 protected:
  static ServerOptions make_options() {
    ServerOptions options;
    options.served_model_names = {"pocket", "org/alias"};
    return options;
  }

  struct Answer {
    std::optional<HttpResponse> response;
    std::string events;
    json body() const { return json::parse(response.value().body); }
  };

  static HttpRequest post(const std::string& path, const std::string& body) {
    return {"POST", path, "application/json", body};
  }

  // Takes until the end, as a connection does.
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

  static bool eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 120s;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }
};

inline constexpr const char* kChatPath = "/v1/chat/completions";
inline constexpr const char* kTextPath = "/v1/completions";

inline HttpRequest get(const std::string& path) {
  return {"GET", path, "", ""};
}

}  // namespace volley::serve
