#include "apps/generate/text_stream.h"

#include <cstdio>

#include "apps/generate/token_colours.h"

namespace volley::apps {

Result<Completion> stream_text(const Engine& engine, RequestPool* pool, GenerateRequest request,
                               const InterruptWatch& interrupt, const Console& console) {
  VOLLEY_RETURN_IF_ERROR(pool->submit(0, std::move(request), true));
  TokenColours colours([&engine](std::span<const TokenId> ids) { return engine.decode(ids, true); });
  for (bool cancelled = false;;) {
    if (interrupt.interrupted() && !cancelled) {
      pool->cancel_all();
      cancelled = true;
    }
    RequestPool::News news = pool->wait(std::chrono::seconds(1));
    for (const Event& event : news.streamed) {
      const std::string text = console.colours() ? colours.paint(event) : event.text;
      std::fwrite(text.data(), 1, text.size(), stdout);
    }
    if (!news.done.empty()) std::fputc('\n', stdout);
    std::fflush(stdout);
    if (!news.done.empty()) return std::move(news.done.front());
  }
}

}  // namespace volley::apps
