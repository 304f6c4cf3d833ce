#include "serve/testing/server_helpers.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

namespace volley::serve {

using nlohmann::json;
using namespace std::chrono_literals;

FakeScript endless_script(std::string piece) {
  return FakeScript{.pieces = {std::move(piece)}, .endless = true};
}

ServerOptions make_options() {
  ServerOptions options;
  options.port = 0;
  options.served_model_names = {"pocket"};
  return options;
}

std::unique_ptr<Server> start_server(Engine& engine, ServerOptions options) {
  auto server = Server::start(engine, std::move(options));
  if (!server.ok()) throw std::runtime_error(server.error().message);
  return std::move(*server);
}

std::unique_ptr<Client> open_stream(uint16_t port, const std::string& text, const std::string& json) {
  auto client = std::make_unique<Client>(port);
  if (!client->send(Client::post_text(kPath, json)) || !client->wait_for(text)) {
    throw std::runtime_error("the stream did not begin");
  }
  return client;
}

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 120s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

std::string streamed_text(const std::string& body) {
  std::string text;
  for (const std::string& event : stream_events(body)) {
    if (event == "[DONE]") return text + "|done";
    const json chunk = json::parse(event);
    if (chunk.contains("error")) return text + "|error";
    for (const json& choice : chunk.at("choices")) text += choice.at("text");
  }
  return text;
}

}  // namespace volley::serve
