// volley._engine: the public C++ API as Python sees it, one to one. What users meet is src/volley/*.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>
#include <volley/chat.h>
#include <volley/engine.h>

#include <algorithm>
#include <boost/preprocessor/seq/for_each.hpp>
#include <boost/preprocessor/stringize.hpp>
#include <boost/preprocessor/variadic/to_seq.hpp>
#include <stdexcept>
#include <type_traits>

#include "apps/cli/known_drafters.h"
#include "apps/cli/verify_spec.h"
#include "module/gil.h"
#include "module/session.h"
#include "module/warning_log.h"

namespace nb = nanobind;
using namespace nb::literals;

// Attributes of a class of Python that have the names of the fields.
#define VOLLEY_READ_ONLY(r, Class, field) .def_ro(BOOST_PP_STRINGIZE(field), &Class::field)
#define VOLLEY_READ_WRITE(r, Class, field) .def_rw(BOOST_PP_STRINGIZE(field), &Class::field)
#define READ_ONLY(Class, ...) BOOST_PP_SEQ_FOR_EACH(VOLLEY_READ_ONLY, Class, BOOST_PP_VARIADIC_TO_SEQ(__VA_ARGS__))
#define READ_WRITE(Class, ...) BOOST_PP_SEQ_FOR_EACH(VOLLEY_READ_WRITE, Class, BOOST_PP_VARIADIC_TO_SEQ(__VA_ARGS__))

namespace volley::python {
namespace {

// An Error on its way through nanobind to the classes of volley/_errors.py.
struct EngineException : std::runtime_error {
  explicit EngineException(const Error& error) : std::runtime_error(error.message), code(error_code_name(error.code)) {}
  const char* code;
};

void raise_in_python(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const EngineException& error) {
    const nb::object type = nb::module_::import_("volley._errors").attr("error_class")(error.code);
    PyErr_SetObject(type.ptr(), type(error.what(), error.code).ptr());
  }
}

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw EngineException(result.error());
  return std::move(result).value();
}

void check(const Status& status) {
  if (!status.ok()) throw EngineException(status.error());
}

// Marks attributes that may be None.
const auto kOptional = nb::for_setter(nb::arg("value").none());

// "EngineInfo(architecture='…', …)": all attributes, in the order in which they are bound.
std::string describe(nb::handle self) {
  std::string text = nb::cast<std::string>(self.type().attr("__name__")) + "(";
  const char* separator = "";
  for (nb::handle name : self.type().attr("__dict__")) {
    const auto attribute = nb::cast<std::string>(name);
    if (attribute.starts_with('_')) continue;
    text += separator + attribute + "=" + nb::cast<std::string>(nb::repr(self.attr(attribute.c_str())));
    separator = ", ";
  }
  return text + ")";
}

// A word of the option's, as users write it. std::invalid_argument, which is a ValueError, lists what may be said.
template <typename T>
T value_of_word(const EngineOption<T>& option, const std::string& text) {
  std::string list;
  for (const auto& word : option.words) {
    if (word.text == text) return T(word.value);
    list.append(list.empty() ? "" : ", ").append(word.text);
  }
  throw std::invalid_argument(option.field_name + (" is '" + text) + "': it must be one of " + list);
}

template <typename T>
void bind_option(nb::class_<EngineOptions>& options, const EngineOption<T>& option) {
  if constexpr (std::is_same_v<T, std::optional<uint64_t>>) {
    options.def_rw(option.field_name, option.field, kOptional);
  } else if constexpr (std::is_same_v<T, VerifyPolicy>) {
    options.def_prop_rw(
        option.field_name, [option](const EngineOptions& self) { return apps::verify_name(self.*option.field); },
        [option](EngineOptions& self, const std::string& text) {
          const auto policy = apps::parse_verify(text);
          if (!policy.ok()) throw std::invalid_argument("verify: " + policy.error().message);
          self.*option.field = *policy;
        });
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, std::string>) {
    if (option.words.empty()) {
      if constexpr (std::is_same_v<T, std::string>) options.def_rw(option.field_name, option.field);
      return;
    }
    options.def_prop_rw(
        option.field_name,
        [option](const EngineOptions& self) {
          const auto same = [&](const auto& word) { return T(word.value) == self.*option.field; };
          return std::string(std::ranges::find_if(option.words, same)->text);
        },
        [option](EngineOptions& self, const std::string& text) { self.*option.field = value_of_word(option, text); });
  } else {
    options.def_rw(option.field_name, option.field);
  }
}

void bind_options(nb::module_& m) {
  nb::class_<EngineOptions> options(m, "EngineOptions");
  options.def(nb::init<>());
  for_each_option([&](const auto& option) { bind_option(options, option); });
  nb::class_<WarningLog>(m, "WarningLog")
      .def(nb::init<>())
      .def("attach", &WarningLog::attach, "options"_a)
      .def("take", &WarningLog::take);
}

void bind_request(nb::module_& m) {
  nb::class_<SamplingParams>(m, "Sampling")
      .def(nb::init<>()) READ_WRITE(SamplingParams, temperature, top_p, top_k, min_p, repetition_penalty,
                                    presence_penalty, frequency_penalty, logit_bias)
      .def_rw("seed", &SamplingParams::seed, kOptional)
      .def_rw("choice_index", &SamplingParams::choice_index)
      .def_rw("logprobs", &SamplingParams::logprobs)
      .def("__repr__", describe);
  nb::class_<GrammarSpec> grammar(m, "Grammar");
  nb::enum_<GrammarSpec::Kind>(grammar, "Kind")
      .value("JSON_OBJECT", GrammarSpec::Kind::kJsonObject)
      .value("JSON_SCHEMA", GrammarSpec::Kind::kJsonSchema)
      .value("REGEX", GrammarSpec::Kind::kRegex)
      .value("CHOICE", GrammarSpec::Kind::kChoice)
      .value("LARK", GrammarSpec::Kind::kLark)
      .value("EBNF", GrammarSpec::Kind::kEbnf);
  grammar.def(nb::init<>()) READ_WRITE(GrammarSpec, kind, text, choices);
  nb::class_<ThinkingBudget>(m, "ThinkingBudget")
      .def(nb::init<>()) READ_WRITE(ThinkingBudget, tokens, begin, end, begun);
  nb::class_<RepetitionDetection>(m, "RepetitionDetection")
      .def(nb::init<>()) READ_WRITE(RepetitionDetection, min_size, max_size, min_count);
  nb::class_<PromptPicture>(m, "PromptPicture")
      .def_ro("width", &PromptPicture::width)
      .def_ro("height", &PromptPicture::height);
  nb::class_<ChatPrompt>(m, "ChatPrompt") READ_ONLY(ChatPrompt, text, tokens, pictures);
  nb::class_<GenerateRequest>(m, "Request")
      .def(nb::init<>()) READ_WRITE(GenerateRequest, prompt, pictures, sampling, max_tokens, min_tokens, ignore_eos,
                                    stop_token_ids, stop, cache_namespace)
      .def_rw("grammar", &GenerateRequest::grammar, kOptional)
          READ_WRITE(GenerateRequest, prompt_logprobs, shares_prompt, skip_special_tokens, allowed_tokens, bad_words)
      .def_rw("thinking", &GenerateRequest::thinking, kOptional)
      .def_rw("repetition", &GenerateRequest::repetition, kOptional)
      .def_rw("speculation", &GenerateRequest::speculation)
      .def_rw("priority", &GenerateRequest::priority)
      .def(
          "continue_text", [](GenerateRequest& request) { request.parts.emplace(); },
          "The text goes on with the prompt's: it is a completion.");
}

void bind_results(nb::module_& m) {
  nb::class_<TokenLogprob>(m, "TokenLogprob")
      .def_ro("token", &TokenLogprob::token)
      .def_ro("logprob", &TokenLogprob::logprob);
  nb::class_<PositionLogprobs>(m, "PositionLogprobs")
      .def_ro("chosen", &PositionLogprobs::chosen)
      .def_ro("top", &PositionLogprobs::top);
  nb::class_<Usage>(m, "Usage") READ_ONLY(Usage, prompt_tokens, cached_tokens, completion_tokens, drafted_tokens,
                                          accepted_tokens, queue_s, ttft_s, total_s);
  nb::class_<Completion>(m, "Completion") READ_ONLY(Completion, index, ended, tokens, text, logprobs, prompt_logprobs)
      .def_prop_ro("finish_reason", [](const Completion& c) { return finish_reason_name(c.finish.reason); })
      .def_prop_ro("stop_token", [](const Completion& c) { return c.finish.stop_token; })
      .def_prop_ro("repeated", [](const Completion& c) { return c.finish.repeated; })
      .def_prop_ro("stop_text", [](const Completion& c) { return c.finish.stop_text; })
      .def_prop_ro("tokens_per_step", [](const Completion& c) { return c.finish.tokens_per_step; })
      .def_prop_ro("usage", [](const Completion& c) { return c.finish.usage; })
      .def(
          "raise_error",
          [](const Completion& c) {
            if (c.finish.error) throw EngineException(*c.finish.error);
          },
          "Raises the error that ended the request, if one did.");
}

void bind_state(nb::module_& m) {
  nb::class_<EngineInfo>(m, "EngineInfo")
      READ_ONLY(EngineInfo, architecture, device, dtype, instruction_set, vocab_size, max_model_len, drafters,
                block_size, quantization, draft_quantization, page_size, kv_pages, max_num_seqs, threads,
                tensor_parallel_size, expert_parallel, data_parallel_size, eos_token_ids, default_sampling, warnings)
          .def("__repr__", describe);
  nb::class_<EngineStats::Verify>(m, "VerifyStats")
      READ_ONLY(EngineStats::Verify, steps, probes, plain, draft_lengths, rows, predicted_tokens, predicted_s,
                measured_s, verified_at, survived_at, predicted_at, last)
          .def("__repr__", describe);
  nb::class_<EngineStats::PageGroup>(m, "PageGroup") READ_ONLY(EngineStats::PageGroup, window, total, used, cached)
      .def("__repr__", describe);
  nb::class_<EngineStats>(m, "EngineStats")
      READ_ONLY(EngineStats, requests_waiting, requests_running, requests_finished, requests_cancelled, requests_failed,
                preemptions, steps, verify_steps, prompt_tokens, cached_tokens, generated_tokens, drafted_tokens,
                accepted_tokens, accepted_at, drafted_at, pages_total, pages_used, pages_cached, page_groups, verify)
          .def("__repr__", describe);
}

// The engine goes when a step under way has ended, and one of a device that hangs never does: other threads go on
// meanwhile. Python drops the last reference, so this thread has its lock.
// A process that was forked from the engine's has none of its threads, for which the engine's end would wait: there it
// stays.
struct Drop {
  pid_t process = getpid();

  void operator()(Engine* engine) const {
    if (getpid() != process) return;
    const WithoutGil unlocked;
    delete engine;
  }
};

std::shared_ptr<Engine> create(const EngineOptions& options) {
  std::unique_ptr<Engine> engine;
  {
    const WithoutGil unlocked;  // minutes, for large models
    engine = value_of(Engine::create(options));
  }
  return {engine.release(), Drop{}};
}

ChatPrompt chat_prompt(const Engine& engine, const std::string& messages_json, const std::string& tools_json,
                       const std::string& template_kwargs_json, bool add_generation_prompt,
                       bool continue_final_message) {
  return value_of(ChatFormat::prompt_of(
      engine, {messages_json, tools_json, template_kwargs_json, add_generation_prompt, continue_final_message}));
}

void bind_chat(nb::module_& m) {
  const auto no_gil = nb::call_guard<WithoutGil>();
  nb::class_<ChatDelta> delta(m, "ChatDelta");
  nb::class_<ChatDelta::ToolCall>(delta, "ToolCall") READ_ONLY(ChatDelta::ToolCall, index, id, name, arguments);
  delta.def_ro("content", &ChatDelta::content)
      .def_ro("reasoning", &ChatDelta::reasoning)
      .def_ro("tool_calls", &ChatDelta::tool_calls);
  nb::class_<ChatReader>(m, "ChatReader")
      .def(
          "read",
          [](ChatReader& reader, const Completion& c) {
            return reader.read(c.text, c.marks, c.ended ? &c.finish : nullptr);
          },
          "piece"_a);
  nb::class_<ChatFormat>(m, "ChatFormat")
      .def(
          "render",
          [](const ChatFormat& format, const std::string& messages_json, const std::string& tools_json,
             const std::string& template_kwargs_json, bool add_generation_prompt, bool continue_final_message) {
            return value_of(format.render(
                {messages_json, tools_json, template_kwargs_json, add_generation_prompt, continue_final_message}));
          },
          "messages_json"_a, "tools_json"_a, "template_kwargs_json"_a, "add_generation_prompt"_a,
          "continue_final_message"_a, no_gil)
      .def("end_tokens", &ChatFormat::end_tokens)
      .def("prepare", &ChatFormat::prepare, "request"_a, "tools"_a, "call_id_prefix"_a);
  m.def(
      "find_chat_format", [](const Engine& engine) { return value_of(ChatFormat::find(engine)); }, "engine"_a,
      nb::keep_alive<0, 1>(), nb::sig("def find_chat_format(engine: Engine) -> ChatFormat | None"),
      "None: the model's answers are one text.");
}

void bind_engine(nb::module_& m) {
  const auto no_gil = nb::call_guard<WithoutGil>();
  nb::class_<Engine>(m, "Engine")
      .def("info", [](const Engine& engine) { return EngineInfo(engine.info()); })
      .def("stats", &Engine::stats)
      .def("drop_prefix_cache", &Engine::drop_prefix_cache)
      .def(
          "encode",
          [](const Engine& engine, const std::string& text, bool special) {
            return value_of(engine.encode(text, special));
          },
          "text"_a, "add_special_tokens"_a, no_gil)
      .def(
          "decode",
          [](const Engine& engine, const std::vector<TokenId>& ids, bool skip) { return engine.decode(ids, skip); },
          "ids"_a, "skip_special_tokens"_a, no_gil)
      .def("chat_prompt", chat_prompt, "messages_json"_a, "tools_json"_a, "template_kwargs_json"_a,
           "add_generation_prompt"_a, "continue_final_message"_a, no_gil);
  nb::class_<Session>(m, "Session")
      .def(nb::init<std::shared_ptr<Engine>, bool>(), "engine"_a, "streaming"_a = false)
      .def(
          "submit",
          [](Session& session, int64_t index, const GenerateRequest& request) {
            check(session.submit(index, request));
          },
          "index"_a, "request"_a, no_gil)
      .def("open", &Session::open)
      .def("wait", &Session::wait, "seconds"_a, no_gil)
      .def_prop_ro("descriptor", &Session::descriptor)
      .def("cancel", nb::overload_cast<>(&Session::cancel), no_gil)
      .def("cancel", nb::overload_cast<int64_t>(&Session::cancel), "index"_a, no_gil);
  m.def("create", create, "options"_a, "Loads the models and starts the engine.");
  m.def("known_drafter", apps::known_drafter, "target"_a, "Its name on the Hugging Face hub.");
}

}  // namespace
}  // namespace volley::python

NB_MODULE(_engine, m) {
  m.doc() = "The engine's C++ API. Use the package volley instead.";
  nb::set_leak_warnings(false);  // what daemon threads have at the interpreter's end stays
  nb::register_exception_translator(volley::python::raise_in_python);
  volley::python::bind_options(m);
  volley::python::bind_request(m);
  volley::python::bind_results(m);
  volley::python::bind_state(m);
  volley::python::bind_engine(m);
  volley::python::bind_chat(m);
}
