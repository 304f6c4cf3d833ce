#include "serve/structured_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "serve/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Kind = GrammarSpec::Kind;

constexpr size_t kMaxChoices = 4096;

// Between the tokens of JSON any white space or none. In the schema's own text, whose order of properties is kept. A
// schema that brings options of its own keeps them.
void set_whitespace(GrammarSpec& grammar, bool any) {
  if (grammar.kind != Kind::kJsonObject && grammar.kind != Kind::kJsonSchema) return;
  if (grammar.kind == Kind::kJsonObject) grammar = {Kind::kJsonSchema, R"({"type":"object"})", {}};
  const auto parsed = parse_json(grammar.text);
  const OwnedJson* schema = std::get_if<OwnedJson>(&parsed);
  if (!schema || !(*schema)->is_object() || (*schema)->contains("x-guidance")) return;
  const std::string option = std::string(R"("x-guidance":{"whitespace_flexible":)") + (any ? "true}" : "false}") +
                             ((*schema)->empty() ? "" : ",");
  grammar.text.insert(grammar.text.find('{') + 1, option);
}

// The constraints of one request, in the order in which they were read.
class Collector {
 public:
  void add(std::string field, Kind kind, std::string text, std::vector<std::string> choices = {}) {
    found_.emplace_back(std::move(field), GrammarSpec{kind, std::move(text), std::move(choices)});
  }
  void want_whitespace(bool any) { any_whitespace_ = any; }
  std::string finish(FieldReader& in, std::optional<GrammarSpec>& out) {
    if (found_.size() > 1) {
      in.fail(invalid_field(found_[1].first, in_quotes(found_[0].first) + " and " + in_quotes(found_[1].first) +
                                                 " both constrain the output: send one of them."));
    } else if (!found_.empty()) {
      out = std::move(found_.front().second);
      if (any_whitespace_) set_whitespace(*out, *any_whitespace_);
    }
    return found_.empty() ? "" : found_.front().first;
  }

 private:
  std::vector<std::pair<std::string, GrammarSpec>> found_;
  std::optional<bool> any_whitespace_;  // nothing: a bounded one
};

// A schema as an object, or as JSON text in a string. `object`: the text that `in` reads.
void read_schema(FieldReader& in, std::string_view name, std::string_view object, const std::string& path,
                 Collector& to) {
  const json* value = in.get(name);
  if (!value) return;
  if (value->is_object()) {
    to.add(path, Kind::kJsonSchema, std::string(find_member(object, name)));
    return;
  }
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    const auto parsed = parse_json(text);
    if (const auto* schema = std::get_if<OwnedJson>(&parsed); schema && (*schema)->is_object()) {
      to.add(path, Kind::kJsonSchema, text);
      return;
    }
  }
  in.fail(invalid_field(name, in_quotes(path) + " must be a JSON schema: an object, or a string that holds one."));
}

void read_text(FieldReader& in, std::string_view name, Kind kind, const std::string& path, Collector& to) {
  std::string text;
  if (!in.string(name, text)) return;
  if (text.empty()) {
    in.fail(invalid_field(name, in_quotes(path) + " must not be empty."));
    return;
  }
  // vLLM takes both notations under one name; only EBNF has "::=".
  if (kind == Kind::kEbnf && text.find("::=") == std::string::npos) kind = Kind::kLark;
  to.add(path, kind, std::move(text));
}

void read_choice(FieldReader& in, std::string_view name, const std::string& path, Collector& to) {
  const json* value = in.get(name);
  if (!value) return;
  const bool strings =
      value->is_array() && !value->empty() && value->size() <= kMaxChoices &&
      std::all_of(value->begin(), value->end(), [](const json& s) { return s.is_string() && s != ""; });
  if (strings) {
    to.add(path, Kind::kChoice, {}, value->get<std::vector<std::string>>());
  } else {
    in.fail(invalid_field(name, in_quotes(path) + " must be a list of 1 to " + std::to_string(kMaxChoices) +
                                    " strings, none of them empty."));
  }
}

void read_json_object(FieldReader& in, std::string_view name, const std::string& path, Collector& to) {
  bool wanted = false;
  if (in.boolean(name, wanted) && wanted) to.add(path, Kind::kJsonObject, {});
}

void read_response_format(FieldReader& in, std::string_view body, Collector& to) {
  in.object("response_format", [&](FieldReader& format) {
    const std::string_view raw = find_member(body, "response_format");
    std::string type;
    if (!format.string("type", type)) {
      format.fail(invalid_field("type", "\"response_format\" needs a \"type\": text, json_object or json_schema."));
      return;
    }
    if (type == "json_schema") {
      const bool given = format.object("json_schema", [&](FieldReader& schema) {
        std::string name, description;
        bool strict = false;
        schema.string("name", name);
        schema.string("description", description);
        schema.boolean("strict", strict);  // the text follows the schema either way
        if (!schema.get("schema")) {
          schema.fail(invalid_field("schema", "\"response_format.json_schema\" needs a \"schema\"."));
        }
        read_schema(schema, "schema", find_member(raw, "json_schema"), "response_format", to);
      });
      if (!given && format.get("schema")) {
        read_schema(format, "schema", raw, "response_format", to);  // as SGLang's clients may write it
      } else if (!given) {
        format.fail(invalid_field("json_schema", "\"response_format\" of type json_schema needs a \"json_schema\"."));
      }
    } else if (type == "json_object") {
      // Some clients put a schema here.
      if (format.get("schema")) {
        read_schema(format, "schema", raw, "response_format", to);
      } else {
        to.add("response_format", Kind::kJsonObject, {});
      }
    } else if (type != "text") {
      format.fail(unsupported_field("type", "\"response_format\" has type " + excerpt(json(type)) +
                                                ", but only text, json_object and json_schema are available."));
    }
  });
}

void read_structured_outputs(FieldReader& in, std::string_view body, Collector& to) {
  in.object("structured_outputs", [&](FieldReader& outputs) {
    const std::string path = "structured_outputs.";
    const std::string_view raw = find_member(body, "structured_outputs");
    read_schema(outputs, "json", raw, path + "json", to);
    read_text(outputs, "regex", Kind::kRegex, path + "regex", to);
    read_choice(outputs, "choice", path + "choice", to);
    read_text(outputs, "grammar", Kind::kEbnf, path + "grammar", to);
    read_json_object(outputs, "json_object", path + "json_object", to);
    // vLLM's choice of an implementation: there is one here, and nothing to fall back to.
    for (const char* name : {"disable_fallback", "_backend", "_backend_was_auto"}) outputs.know(name);
    if (bool none = false; outputs.boolean("disable_any_whitespace", none)) to.want_whitespace(!none);
    constexpr const char* kClosed = "disable_additional_properties";
    if (bool wanted = false; outputs.boolean(kClosed, wanted) && wanted) {
      outputs.fail(unsupported_field(kClosed, in_quotes(path + kClosed) + " is not supported: say it in the schema."));
    }
    for (const char* name : {"whitespace_pattern", "structural_tag"}) {
      if (outputs.get(name)) {
        outputs.fail(unsupported_field(name, in_quotes(path + name) + " is not supported: leave it out."));
      }
    }
    // A constraint that is not known would let the text go free.
    if (const auto unread = outputs.unread(); !unread.empty()) {
      outputs.fail(unsupported_field(unread.front(), "\"structured_outputs\" has no " + in_quotes(unread.front()) +
                                                         "; it takes json, regex, choice, grammar or json_object."));
    }
  });
}

}  // namespace

std::string read_grammar(FieldReader& in, std::string_view body, std::optional<GrammarSpec>& out) {
  Collector to;
  read_response_format(in, body, to);
  read_structured_outputs(in, body, to);
  for (const char* name : {"guided_json", "json_schema"}) read_schema(in, name, body, name, to);
  for (const char* name : {"guided_regex", "regex"}) read_text(in, name, Kind::kRegex, name, to);
  read_text(in, "guided_grammar", Kind::kEbnf, "guided_grammar", to);
  for (const char* name : {"ebnf", "grammar"}) read_text(in, name, Kind::kEbnf, name, to);
  read_choice(in, "guided_choice", "guided_choice", to);
  read_json_object(in, "guided_json_object", "guided_json_object", to);
  return to.finish(in, out);
}

}  // namespace volley::serve
