// Draws the engine into the shared library: a static library's object comes along only if something asks for it.
#include <volley/chat.h>
#include <volley/engine.h>

namespace {

[[gnu::used]] const auto kCreate = &volley::Engine::create;
[[gnu::used]] const auto kFind = &volley::ChatFormat::find;
[[gnu::used]] const auto kPrompt = &volley::ChatFormat::prompt_of;

}  // namespace
