// Shared by tests of a running server.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "serve/http/server.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"

namespace volley::serve {

inline constexpr const char* kPath = "/v1/completions";
inline const std::string kWhole = R"({"prompt": "x"})";
inline const std::string kStream = R"({"prompt": "x", "stream": true})";

FakeScript endless_script(std::string piece = "word ");

ServerOptions make_options();  // any free port, the model "pocket"
// make_options() with one value changed.
template <typename T>
ServerOptions with(T ServerOptions::*option, std::type_identity_t<T> value) {
  ServerOptions options = make_options();
  options.*option = std::move(value);
  return options;
}
std::unique_ptr<Server> start_server(Engine& engine, ServerOptions options = make_options());

// A client that has received `text` of a stream for this request; throws if it does not come.
std::unique_ptr<Client> open_stream(uint16_t port, const std::string& text = "word", const std::string& json = kStream);

// Waits until the condition holds; false if it does not within a few seconds.
bool eventually(const std::function<bool()>& condition);

// The text of a stream's chunks, then "|done", or "|error" if an error ended it.
std::string streamed_text(const std::string& body);

}  // namespace volley::serve
