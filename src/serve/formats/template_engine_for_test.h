// An engine that only has a chat template and a few tokens.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/formats/format_for_test.h"
#include "text/test_model.h"
#include "text/text.h"

namespace volley::serve {

class TemplateEngine : public SilentEngine {
 public:
  explicit TemplateEngine(const std::string& source, std::vector<std::string> tokens = {})
      : SilentEngine(std::move(tokens)) {
    const text::ModelDir dir({{"chat_template.jinja", source}});
    auto loaded = text::ChatTemplate::load(dir.path());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    if (loaded.ok()) template_ = *loaded;
  }

  Result<std::string> render_chat(const ChatMessages& chat) const override { return template_->render(chat); }

 private:
  std::shared_ptr<const text::ChatTemplate> template_;
};

}  // namespace volley::serve
