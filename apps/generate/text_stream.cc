#include "apps/generate/text_stream.h"

#include <cstdio>

#include "apps/generate/token_colours.h"
#include "apps/standard_streams.h"

namespace volley::apps {

Result<Completion> stream_text(const Engine& engine, RequestPool* pool, GenerateRequest request,
                               const InterruptWatch& interrupt, const Console& console) {
  VOLLEY_RETURN_IF_ERROR(pool->submit(0, std::move(request), true));
  TokenColours colours([&engine](std::span<const TokenId> ids) { return engine.decode(ids, true); });
  const bool painted = console.colours() && engine.info().block_size > 1;
  Status written;
  for (bool cancelled = false;;) {
    if ((interrupt.interrupted() || !written.ok()) && !cancelled) {
      pool->cancel_all();
      cancelled = true;
    }
    RequestPool::News news = pool->wait(std::chrono::seconds(1));
    for (const Event& event : news.streamed) {
      const std::string text = painted ? colours.paint(event) : event.text;
      std::fwrite(text.data(), 1, text.size(), stdout);
    }
    if (!news.done.empty()) std::fputc('\n', stdout);
    if (const Status flushed = flush_standard_output(); written.ok()) written = flushed;
    if (news.done.empty()) continue;
    if (!written.ok()) return written.error();
    return std::move(news.done.front());
  }
}

}  // namespace volley::apps
