// Structured output in the engine: every answer satisfies its grammar, and the drafter, the batch and the pool change
// no token of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "harness.h"
#include "json_schema.h"

namespace volley::testing {
namespace {

using ::testing::HasSubstr;
using Kind = GrammarSpec::Kind;

EngineOptions engine_options(Speculation speculation, int slots = 8) {
  EngineOptions options = pocket_options();
  options.speculation = speculation;
  if (speculation == Speculation::kOff) options.draft_dir.clear();
  options.max_num_seqs = slots;
  return options;
}

GenerateRequest with_grammar(const Engine& engine, GrammarSpec grammar, int32_t max_tokens = 600) {
  GenerateRequest request = chat_request(engine, "Tell me a story about a dog and a ladder.", max_tokens);
  request.grammar = std::move(grammar);
  return request;
}

// Every other one greedy.
std::vector<GenerateRequest> schema_requests(const Engine& engine, int count) {
  const auto prompts = read_prompts("mixed_prompts.jsonl");
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerateRequest request = chat_request(engine, prompts[i % prompts.size()].prompt, 1800);
    request.grammar = GrammarSpec{Kind::kJsonSchema, schema_of_family(i).dump(), {}};
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = 77 + i;
    requests.push_back(std::move(request));
  }
  return requests;
}

void expect_same(const std::vector<Output>& a, const std::vector<Output>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].tokens, b[i].tokens) << what << ", request " << i << ": " << a[i].text << "\nagainst " << b[i].text;
    ASSERT_EQ(a[i].text, b[i].text) << what << ", request " << i;
    ASSERT_EQ(a[i].finish.reason, b[i].finish.reason) << what << ", request " << i;
  }
}

// The text of each answer is an instance of its schema, with speculation and without, and the tokens are the same.
TEST(Grammar, EverySchemaIsSatisfiedAndSpeculationIsInvisible) {
  const int count = kSanitized ? 12 : full_matrix() ? 500 : 150;
  std::vector<Output> outputs[2];
  for (const bool drafter : {false, true}) {
    EngineOptions options = engine_options(drafter ? Speculation::kOn : Speculation::kOff);
    options.block_size = drafter ? 8 : 0;
    const auto engine = make_engine(options);
    outputs[drafter] = run_all(*engine, schema_requests(*engine, count), 8);
    const EngineStats stats = engine->stats();
    std::printf(
        "%s: %lld tokens, %.2f a step\n", drafter ? "DFlash" : "plain", static_cast<long long>(stats.generated_tokens),
        static_cast<double>(stats.accepted_tokens + stats.verify_steps) / static_cast<double>(stats.verify_steps));
  }
  for (int i = 0; i < count; ++i) {
    const Output& out = outputs[1][i];
    ASSERT_EQ(out.finish.reason, FinishReason::kStop) << i << ": " << out.text;
    const auto why = violation(schema_of_family(i), out.text);
    ASSERT_FALSE(why) << i << ": " << *why << "\n" << out.text << "\n" << schema_of_family(i).dump();
  }
  expect_same(outputs[0], outputs[1], "speculation");
}

// A grammar that would take minutes to compile: submit() does not stay with it for a client that has left.
TEST(Grammar, CompilingEndsWithWhoAskedForIt) {
  EngineOptions options = engine_options(Speculation::kOff);
  options.grammar_compile_timeout_ms = 600'000;
  options.grammar_memory_bytes = int64_t{8} << 30;
  const auto engine = make_engine(options);
  OrderedJson schema = {{"type", "object"}};
  for (int i = 0; i < 4'000; ++i) {
    const std::string name = "p" + std::to_string(i);
    schema["properties"][name] = {{"type", "integer"}, {"multipleOf", 160'001 + 2 * i}};
    schema["required"].push_back(name);
  }
  GenerateRequest request = with_grammar(*engine, {Kind::kJsonSchema, schema.dump(), {}});
  const std::atomic<bool> cancelled{true};
  request.cancelled = &cancelled;
  const auto id = engine->submit(std::move(request), [](const Event&) {});
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.error().code, ErrorCode::kCancelled);
}

// The validator of the test above must be able to say no.
TEST(JsonSchema, ValidatorFindsViolations) {
  const auto wrong = [](const char* schema, const char* text) {
    return violation(OrderedJson::parse(schema), text).has_value();
  };
  EXPECT_FALSE(wrong(R"({"type":"integer","maximum":3})", "3"));
  EXPECT_TRUE(wrong(R"({"type":"integer","maximum":3})", "4"));
  EXPECT_TRUE(wrong(R"({"type":"integer"})", "1.5"));
  EXPECT_TRUE(wrong(R"({"type":"string","pattern":"^a$"})", R"("b")"));
  EXPECT_TRUE(wrong(R"({"type":"string","maxLength":1})", R"("éé")"));
  EXPECT_FALSE(wrong(R"({"type":"string","maxLength":2})", R"("\u00e9é")"));
  EXPECT_TRUE(wrong(R"({"enum":["a",1]})", "2"));
  EXPECT_TRUE(wrong(R"({"type":"number","multipleOf":0.25})", "0.3"));
  EXPECT_TRUE(wrong(R"({"type":"array","items":{"type":"null"},"maxItems":1})", "[null,null]"));
  EXPECT_TRUE(wrong(R"({"type":"object","required":["a"]})", "{}"));
  EXPECT_TRUE(wrong(R"({"type":"object","properties":{"a":{}},"additionalProperties":false})", R"({"b":1})"));
  EXPECT_TRUE(wrong(R"({"anyOf":[{"const":"x"},{"type":"null"}]})", "1"));
  EXPECT_TRUE(wrong(R"({"type":"object"})", "{"));
  EXPECT_TRUE(wrong(R"({"format":"date"})", "1"));
}

// Grammars beside every parameter that shapes a choice or an end, over configurations of block, batch, pool and cache.
std::vector<GenerateRequest> varied_requests(const Engine& engine) {
  const std::vector<GrammarSpec> grammars = {
      {Kind::kJsonObject, "", {}},
      {Kind::kJsonSchema, schema_of_family(3).dump(), {}},
      {Kind::kRegex, "([A-Z][a-z]{2,8} ){3,12}[.]", {}},
      {Kind::kChoice, "", {"The dog", "The dog found a ladder near the garden.", "A ladder"}},
      {Kind::kLark, "start: (word \" \")+ \".\"\nword: /[a-z]{1,12}/\n", {}},
      {Kind::kEbnf, "root ::= item+ \"!\"\nitem ::= \"(\" item* \")\" | [a-z ]", {}},
  };
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < (kSanitized ? 18 : 36); ++i) {
    GenerateRequest request = with_grammar(engine, grammars[i % grammars.size()], 90);
    request.sampling.temperature = i % 4 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    if (i % 5 == 1) request.min_tokens = 25;
    if (i % 7 == 2) request.ignore_eos = true;
    if (i % 5 == 3) request.stop = {"gar", ", \""};
    if (i % 11 == 4) request.stop_token_ids = {request.prompt[3]};
    if (i % 4 == 1) request.sampling.repetition_penalty = 1.2f;
    if (i % 6 == 2) request.sampling.top_k = 5;
    request.sampling.choice_index = i % 3;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(Grammar, NothingButTheRequestDecidesItsTokens) {
  std::vector<Output> plain;
  {
    const auto engine = make_engine(engine_options(Speculation::kOff, 1));
    plain = run_all(*engine, varied_requests(*engine), 1);
  }
  for (const Output& out : plain) {
    ASSERT_EQ(out.terminal_events, 1);
    ASSERT_NE(out.finish.reason, FinishReason::kError) << out.finish.error->message;
  }
  for (const int block : {4, 16}) {
    EngineOptions options = engine_options(Speculation::kOn);
    options.block_size = block;
    options.max_model_len = 256;
    options.prefill_chunk = block == 4 ? 16 : 512;
    options.prefix_cache = block == 4;
    options.page_size = 16;
    options.kv_pages = (256 + 16) / 16 + 6;
    const auto engine = make_engine(options);
    expect_same(plain, run_all(*engine, varied_requests(*engine), 8), "block " + std::to_string(block));
    EXPECT_GT(engine->stats().preemptions, 0);
  }
}

// Where only one text is left the request ends by itself, with the model's end id if it may be used, without one else.
TEST(Grammar, EndsWhereNothingElseMayFollow) {
  for (const Speculation speculation : {Speculation::kOff, Speculation::kOn}) {
    const auto engine = make_engine(engine_options(speculation));
    const GrammarSpec grammar{Kind::kChoice, "", {"a ladder near the garden"}};
    std::vector<GenerateRequest> requests(3, with_grammar(*engine, grammar));
    requests[1].ignore_eos = true;
    requests[2].min_tokens = 50;
    const auto outputs = run_all(*engine, std::move(requests), 3);
    for (const Output& out : outputs) {
      EXPECT_EQ(out.text, grammar.choices[0]);
      EXPECT_EQ(out.finish.reason, FinishReason::kStop);
    }
    EXPECT_TRUE(outputs[0].finish.stop_token);
    for (const Output& out : {outputs[1], outputs[2]}) {
      EXPECT_FALSE(out.finish.stop_token);
      EXPECT_EQ(out.tokens.size() + 1, outputs[0].tokens.size());
      EXPECT_EQ(out.finish.usage.completion_tokens, static_cast<int32_t>(out.tokens.size()));
    }
  }
}

// One request's grammar says nothing about another's tokens, and logprobs are those of the unmasked model.
TEST(Grammar, OthersInTheBatchAreUntouched) {
  const auto engine = make_engine(engine_options(Speculation::kOn));
  GenerateRequest free = chat_request(*engine, "Tell me a story about a dog and a ladder.", 60);
  free.sampling.logprobs = 2;
  const Output alone = run_all(*engine, {free}, 1)[0];
  const auto mixed = run_all(*engine,
                             {with_grammar(*engine, {Kind::kJsonObject, "", {}}, 60), free,
                              with_grammar(*engine, {Kind::kRegex, "[0-9 ]{20,40}", {}}, 60)},
                             3);
  EXPECT_EQ(mixed[1].tokens, alone.tokens);
  ASSERT_EQ(mixed[1].logprobs.size(), alone.logprobs.size());
  for (size_t i = 0; i < alone.logprobs.size(); ++i) {
    EXPECT_EQ(mixed[1].logprobs[i].chosen.logprob, alone.logprobs[i].chosen.logprob);
  }
}

TEST(Grammar, RefusesWhatCannotBeCompiledBeforeAnythingRuns) {
  const auto engine = make_engine(engine_options(Speculation::kOn));
  const auto refused = [&](GrammarSpec grammar) {
    return run_all(*engine, {with_grammar(*engine, std::move(grammar))}, 1)[0];
  };
  const Output out = refused({Kind::kJsonSchema, R"({"type": "strin"})", {}});
  EXPECT_EQ(out.terminal_events, 0);
  ASSERT_TRUE(out.finish.error);
  EXPECT_EQ(out.finish.error->code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(out.finish.error->message, HasSubstr("The JSON schema cannot be used: "));
  EXPECT_EQ(refused({Kind::kRegex, "(", {}}).finish.error->code, ErrorCode::kInvalidArgument);

  GenerateRequest simulated = with_grammar(*engine, {Kind::kJsonObject, "", {}});
  simulated.simulate_acceptance = SimulatedAcceptance{{{0, 0.8}}};
  EXPECT_EQ(run_all(*engine, {simulated}, 1)[0].finish.error->code, ErrorCode::kInvalidArgument);
}

// A text on which the grammar grows beyond its limits fails that request alone, at the same token with speculation and
// without.
TEST(Grammar, OneThatGrowsTooComplexFailsItsRequestAlone) {
  std::vector<Output> failed;
  for (const Speculation speculation : {Speculation::kOff, Speculation::kOn}) {
    const auto engine = make_engine(engine_options(speculation));
    GenerateRequest complex = with_grammar(*engine, {Kind::kRegex, "((a{1,100}){1,100}){1,100}b", {}}, 100);
    for (const char* token : {"b", "bb"})
      complex.sampling.logit_bias.push_back({(*engine->encode(token, false))[0], -100});
    const auto outputs = run_all(*engine, {complex, with_grammar(*engine, {Kind::kChoice, "", {"yes", "no"}}, 100)}, 2);
    EXPECT_EQ(outputs[1].finish.reason, FinishReason::kStop);
    EXPECT_EQ(outputs[0].terminal_events, 1);
    failed.push_back(outputs[0]);
  }
  ASSERT_EQ(failed[0].finish.reason, FinishReason::kError) << failed[0].text;
  EXPECT_THAT(failed[0].finish.error->message, HasSubstr("too complex"));
  EXPECT_EQ(failed[1].finish.reason, FinishReason::kError);
  EXPECT_EQ(failed[0].tokens, failed[1].tokens);
}

TEST(Grammar, CancelledAtAnyMomentEverythingComesBack) {
  const auto engine = make_engine(engine_options(Speculation::kOn));
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> terminal = 0;
    const auto id = engine->submit(with_grammar(*engine, {Kind::kRegex, "[a-z ]*", {}}, 800), [&](const Event& event) {
      if (event.finish) ++terminal;
    });
    ASSERT_TRUE(id.ok());
    std::this_thread::sleep_for(std::chrono::microseconds(300 * i));
    engine->cancel(*id);
    while (terminal == 0) std::this_thread::yield();
  }
  engine->drop_prefix_cache();
  while (engine->stats().pages_used > 0) std::this_thread::yield();
}

std::vector<TokenId> ids_of(const Engine& engine, const std::string& text) {
  return *engine.encode(text, false);
}

// The request's own lists of tokens, combined with other parameters.
std::vector<GenerateRequest> ruled_requests(const Engine& engine) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 24; ++i) {
    GenerateRequest request = chat_request(engine, "Tell me a story about a dog and a ladder.", 60);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    if (i % 3 != 1) request.bad_words = {ids_of(engine, " dog"), ids_of(engine, "dog"), ids_of(engine, " the garden")};
    if (i % 4 == 1) {
      request.allowed_tokens = ids_of(engine, "The dog found a ladder near the old garden. It was red, and he ran.");
    }
    if (i % 4 == 2) request.thinking = ThinkingBudget{9, 0, ids_of(engine, "!").front(), true};
    if (i % 4 == 3) request.repetition = RepetitionDetection{1, 6, 3};
    if (i % 5 == 1) request.min_tokens = 20;
    if (i % 6 == 2) request.grammar = GrammarSpec{Kind::kRegex, "([A-Za-z]{1,9}[ .,]){3,30}!?", {}};
    if (i % 7 == 3) request.ignore_eos = true;
    if (i % 8 == 5) request.skip_special_tokens = false;
    requests.push_back(std::move(request));
  }
  return requests;
}

bool holds(const std::vector<TokenId>& text, const std::vector<TokenId>& word) {
  return std::search(text.begin(), text.end(), word.begin(), word.end()) != text.end();
}

TEST(TokenRules, AreKeptAndSpeculationIsInvisible) {
  std::vector<Output> outputs[2];
  for (const bool drafter : {false, true}) {
    EngineOptions options = engine_options(drafter ? Speculation::kOn : Speculation::kOff);
    options.block_size = drafter ? 8 : 0;
    const auto engine = make_engine(options);
    const auto requests = ruled_requests(*engine);
    outputs[drafter] = run_all(*engine, requests, 8);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Output& out = outputs[drafter][i];
      for (const auto& word : requests[i].bad_words) EXPECT_FALSE(holds(out.tokens, word)) << i << ": " << out.text;
      if (!requests[i].allowed_tokens.empty()) {
        for (const TokenId token : out.tokens) EXPECT_TRUE(holds(requests[i].allowed_tokens, {token})) << i;
      }
      if (requests[i].thinking && out.tokens.size() > 9) {
        const auto end = std::find(out.tokens.begin(), out.tokens.end(), requests[i].thinking->end);
        EXPECT_LE(end - out.tokens.begin(), 9) << i << ": " << out.text;
      }
    }
  }
  expect_same(outputs[0], outputs[1], "speculation");
}

TEST(TokenRules, EndsOfTheirOwn) {
  for (const Speculation speculation : {Speculation::kOff, Speculation::kOn}) {
    const auto engine = make_engine(engine_options(speculation));
    std::vector<GenerateRequest> requests(4, chat_request(*engine, "Who are you?", 40));
    requests[0].allowed_tokens = requests[1].allowed_tokens = {ids_of(*engine, " dog").front()};
    requests[0].repetition = requests[1].repetition = RepetitionDetection{1, 4, 5};
    requests[1].min_tokens = 12;
    requests[2].allowed_tokens = requests[3].allowed_tokens = {engine->info().eos_token_ids.front()};
    requests[2].ignore_eos = requests[3].ignore_eos = true;
    requests[2].skip_special_tokens = false;
    requests[2].max_tokens = requests[3].max_tokens = 3;
    const auto outputs = run_all(*engine, requests, 4);
    EXPECT_EQ(outputs[0].tokens.size(), 5u);
    EXPECT_EQ(outputs[1].tokens.size(), 12u);
    for (const Output& out : {outputs[0], outputs[1]}) {
      EXPECT_EQ(out.finish.reason, FinishReason::kStop);
      EXPECT_TRUE(out.finish.repeated);
      EXPECT_EQ(out.finish.usage.completion_tokens, static_cast<int32_t>(out.tokens.size()));
    }
    EXPECT_EQ(outputs[2].text, engine->decode(outputs[2].tokens, false));
    EXPECT_FALSE(outputs[2].text.empty());
    EXPECT_EQ(outputs[3].text, "");
  }
}

// A request that contradicts itself fails with the tokens chosen before, drafted in the failing step or not; where its
// grammar permits an end, it ends there.
TEST(TokenRules, AContradictionDeliversWhatCameBefore) {
  const std::string text = "a ladder near the garden";
  for (const Speculation speculation : {Speculation::kOff, Speculation::kOn}) {
    const auto engine = make_engine(engine_options(speculation));
    const std::vector<TokenId> ids = ids_of(*engine, text);
    std::vector<GenerateRequest> requests(2, with_grammar(*engine, {Kind::kChoice, "", {text}}));
    requests[0].allowed_tokens = requests[1].allowed_tokens = ids;
    requests[0].bad_words = {{ids.back()}};
    std::vector<std::vector<TokenId>> before_the_end(2);
    const auto outputs = run_all(*engine, requests, 2, [&](size_t i, const Event& event) {
      if (!event.finish) before_the_end[i].insert(before_the_end[i].end(), event.tokens.begin(), event.tokens.end());
    });
    EXPECT_EQ(outputs[0].finish.reason, FinishReason::kError);
    ASSERT_TRUE(outputs[0].finish.error);
    EXPECT_EQ(outputs[0].finish.error->code, ErrorCode::kInvalidArgument) << outputs[0].finish.error->message;
    EXPECT_EQ(before_the_end[0], std::vector<TokenId>(ids.begin(), ids.end() - 1));
    EXPECT_EQ(outputs[1].finish.reason, FinishReason::kStop) << "the text is complete, and nothing may follow";
    EXPECT_EQ(outputs[1].text, text);
    EXPECT_FALSE(outputs[1].finish.stop_token);
    EXPECT_EQ(engine->stats().requests_failed, 1);
  }
}

// A request may switch speculation off for itself.
TEST(Speculation, CanBeSwitchedOffForOneRequest) {
  const auto engine = make_engine(engine_options(Speculation::kOn));
  GenerateRequest request = chat_request(*engine, "Tell me a story about a dog and a ladder.", 80);
  GenerateRequest plain = request;
  plain.speculation = false;
  const auto outputs = run_all(*engine, {request, plain}, 2);
  EXPECT_EQ(outputs[0].tokens, outputs[1].tokens);
  EXPECT_GT(outputs[0].finish.usage.drafted_tokens, 0);
  EXPECT_EQ(outputs[1].finish.usage.drafted_tokens, 0);
  EXPECT_EQ(outputs[1].finish.tokens_per_step.size() + 1, outputs[1].tokens.size());
}

}  // namespace
}  // namespace volley::testing
