#include "apps/generate/text_stream.h"

#include <cstdio>

#include "apps/generate/token_colours.h"
#include "apps/standard_streams.h"

namespace volley::apps {

Result<Completion> stream_text(const Engine& engine, RequestPool* pool, ChatRequests::Built request,
                               const InterruptWatch& interrupt, const Console& console) {
  VOLLEY_RETURN_IF_ERROR(pool->submit(0, std::move(request.request), true));
  const std::optional<serve::OutputParser::Options>& parts = request.parts;
  TokenColours colours([&engine](std::span<const TokenId> ids) { return engine.decode(ids, true); });
  const bool painted = console.colours() && engine.info().block_size > 1;
  std::optional<serve::OutputParser> parser;
  if (parts) parser.emplace(*parts);
  const auto print = [](const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); };
  const auto show = [&](const serve::OutputDelta& delta, TokenColours::Origin origin) {
    if (!delta.content().empty()) print(painted ? TokenColours::coloured(delta.content(), origin) : delta.content());
  };
  Status written;
  for (bool cancelled = false;;) {
    if ((interrupt.interrupted() || !written.ok()) && !cancelled) {
      pool->cancel_all();
      cancelled = true;
    }
    RequestPool::News news = pool->wait(std::chrono::seconds(1));
    for (const Event& event : news.streamed) {
      if (parser) {
        parse_event(event, colours, *parser, show);
      } else {
        print(painted ? colours.paint(event) : event.text);
      }
    }
    if (!news.done.empty()) {
      if (parser) show(parser->finish(), TokenColours::Origin::kUnknown);
      std::fputc('\n', stdout);
    }
    if (const Status flushed = flush_standard_output(); written.ok()) written = flushed;
    if (news.done.empty()) continue;
    if (!written.ok()) return written.error();
    if (parts) separate(*parts, news.done.front());
    return std::move(news.done.front());
  }
}

}  // namespace volley::apps
