#include "serve/api/structured_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Kind = GrammarSpec::Kind;

constexpr size_t kMaxChoices = 4096;

// Options of a schema that the request has beside it.
struct SchemaOptions {
  std::optional<bool> any_whitespace;  // between JSON tokens: any or none; nothing: a bounded amount
  bool open_objects = false;
};

// Writes the options into the schema's own text, which keeps the order of properties. Options in the schema stay.
void set_options(GrammarSpec& grammar, const SchemaOptions& options) {
  if (grammar.kind != Kind::kJsonObject && grammar.kind != Kind::kJsonSchema) return;
  std::string text;
  if (options.any_whitespace)
    text = std::string(R"("whitespace_flexible":)") + (*options.any_whitespace ? "true" : "false");
  if (options.open_objects) text += std::string(text.empty() ? "" : ",") + R"("open_objects":true)";
  if (text.empty()) return;
  if (grammar.kind == Kind::kJsonObject) grammar = {Kind::kJsonSchema, R"({"type":"object"})", {}};
  const auto parsed = parse_json(grammar.text);
  const json* schema = std::get_if<json>(&parsed);
  if (!schema || !schema->is_object() || schema->contains("x-guidance")) return;
  text = R"("x-guidance":{)" + text + "}" + (schema->empty() ? "" : ",");
  grammar.text.insert(grammar.text.find('{') + 1, text);
}

// Collects a request's constraints in the order of reading.
class Collector {
 public:
  void add(std::string field, Kind kind, std::string text, std::vector<std::string> choices = {}) {
    found_.emplace_back(std::move(field), GrammarSpec{kind, std::move(text), std::move(choices)});
  }
  SchemaOptions& options() { return options_; }
  std::string finish(FieldReader& in, std::optional<GrammarSpec>& out) {
    if (found_.size() > 1) {
      in.fail(invalid_field(found_[1].first, in_quotes(found_[0].first) + " and " + in_quotes(found_[1].first) +
                                                 " both constrain the output: send one of them."));
    } else if (!found_.empty()) {
      out = std::move(found_.front().second);
      set_options(*out, options_);
    }
    return found_.empty() ? "" : found_.front().first;
  }

 private:
  std::vector<std::pair<std::string, GrammarSpec>> found_;
  SchemaOptions options_;
};

// Reads a schema that is an object, or JSON text in a string. `object`: the text that `in` reads.
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
    if (const json* schema = std::get_if<json>(&parsed); schema && schema->is_object()) {
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

// `raw`: its text. `field`: its name in the client's API. `nested`: a schema belongs into an object of its own,
// although some clients leave that out.
void read_format(FieldReader& format, std::string_view raw, const std::string& field, bool nested, Collector& to) {
  std::string type;
  if (!format.string("type", type)) {
    format.fail(invalid_field("type", in_quotes(field) + " needs a \"type\": text, json_object or json_schema."));
  } else if (type == "json_schema") {
    const auto read = [&](FieldReader& schema, std::string_view text, const std::string& whose) {
      std::string name, description;
      bool strict = false;
      schema.string("name", name);
      schema.string("description", description);
      schema.boolean("strict", strict);  // the text follows the schema in any case
      if (!schema.get("schema")) schema.fail(invalid_field("schema", in_quotes(whose) + " needs a \"schema\"."));
      read_schema(schema, "schema", text, field, to);
    };
    const bool given = nested && format.object("json_schema", [&](FieldReader& schema) {
      read(schema, find_member(raw, "json_schema"), field + ".json_schema");
    });
    if (!given && (!nested || format.get("schema"))) {
      read(format, raw, field);
    } else if (!given) {
      format.fail(invalid_field("json_schema", in_quotes(field) + " of type json_schema needs a \"json_schema\"."));
    }
  } else if (type == "json_object") {
    // Some clients put a schema here.
    if (format.get("schema")) {
      read_schema(format, "schema", raw, field, to);
    } else {
      to.add(field, Kind::kJsonObject, {});
    }
  } else if (type != "text") {
    format.fail(unsupported_field("type", in_quotes(field) + " has type " + excerpt(json(type)) +
                                              ", but only text, json_object and json_schema are available."));
  }
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
    // vLLM's choice of an implementation: here there is one, without a fallback.
    for (const char* name : {"disable_fallback", "_backend", "_backend_was_auto"}) outputs.know(name);
    if (bool none = false; outputs.boolean("disable_any_whitespace", none)) to.options().any_whitespace = !none;
    if (bool closed = true; outputs.boolean("disable_additional_properties", closed))
      to.options().open_objects = !closed;
    for (const char* name : {"whitespace_pattern", "structural_tag"}) {
      if (outputs.get(name)) {
        outputs.fail(unsupported_field(name, in_quotes(path + name) + " is not supported: leave it out."));
      }
    }
    // An unknown constraint must not leave the text free.
    if (const auto unread = outputs.unread(); !unread.empty()) {
      outputs.fail(unsupported_field(unread.front(), "\"structured_outputs\" has no " + in_quotes(unread.front()) +
                                                         "; it takes json, regex, choice, grammar or json_object."));
    }
  });
}

}  // namespace

std::optional<GrammarSpec> read_text_format(FieldReader& format, std::string_view raw, const std::string& field) {
  Collector to;
  std::optional<GrammarSpec> out;
  read_format(format, raw, field, /*nested=*/false, to);
  to.finish(format, out);
  return out;
}

std::string read_grammar(FieldReader& in, std::string_view body, bool& open_objects, std::optional<GrammarSpec>& out,
                         const std::string& own_field) {
  Collector to;
  if (out) to.add(own_field, out->kind, std::move(out->text));
  to.options().open_objects = open_objects;
  in.object("response_format", [&](FieldReader& format) {
    read_format(format, find_member(body, "response_format"), "response_format", /*nested=*/true, to);
  });
  read_structured_outputs(in, body, to);
  for (const char* name : {"guided_json", "json_schema"}) read_schema(in, name, body, name, to);
  for (const char* name : {"guided_regex", "regex"}) read_text(in, name, Kind::kRegex, name, to);
  read_text(in, "guided_grammar", Kind::kEbnf, "guided_grammar", to);
  for (const char* name : {"ebnf", "grammar"}) read_text(in, name, Kind::kEbnf, name, to);
  read_choice(in, "guided_choice", "guided_choice", to);
  read_json_object(in, "guided_json_object", "guided_json_object", to);
  open_objects = to.options().open_objects;
  return to.finish(in, out);
}

}  // namespace volley::serve
