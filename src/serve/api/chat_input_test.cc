// Protects pictures on their way from each API's request to the engine: in their places, with their sizes and pixels,
// or a sentence that names the part.
#include "serve/api/chat_input.h"

#include <gmock/gmock.h>

#include "base/temp_folder_for_test.h"
#include "serve/api/api_for_test.h"
#include "serve/files/file_store.h"

namespace volley::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kWide = "NjR4MzI=";       // "64x32": two tokens
constexpr const char* kSquare = "MzJ4MzI";      // "32x32", without its padding
constexpr const char* kLarge = "NjQwMHg2NDAw";  // "6400x6400": 40,000 tokens
constexpr const char* kMessages = "/v1/messages";
constexpr const char* kResponses = "/v1/responses";

std::string data_url(const std::string& base64) {
  return "data:image/png;base64," + base64;
}

json chat_part(const std::string& base64) {
  return {{"type", "image_url"}, {"image_url", {{"url", data_url(base64)}, {"detail", "low"}}}};
}
json item_part(const std::string& base64) {
  return {{"type", "input_image"}, {"image_url", data_url(base64)}};
}
json block(const std::string& base64) {
  return {{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", base64}}}};
}
json text(const std::string& words, const char* type = "text") {
  return {{"type", type}, {"text", words}};
}

class ChatInputTest : public ApiTest {
 protected:
  ChatInputTest() {
    PictureRules& rules = engine_.mutable_info().pictures.emplace();
    rules.token = 258;
  }

  static json user(const json& content) {
    return {{"role", "user"}, {"content", content.is_object() ? json::array({content}) : content}};
  }
  static json chat(const json& content) { return {{"messages", {user(content)}}}; }
  static json items(const json& content) { return {{"input", {user(content)}}}; }
  static json blocks(const json& content) { return {{"max_tokens", 5}, {"messages", {user(content)}}}; }

  std::string refusal(const std::string& path, const json& body) {
    const Answer got = answer(post(path, body.dump()));
    EXPECT_EQ(got.response.value().status, 400) << body.dump().substr(0, 500);
    return got.body().at("error").at("message");
  }

  // The last request: its text, and its pictures as "begin:64x32", which it checks.
  std::string pictures() {
    const GenerateRequest request = engine_.submitted().back();
    std::string all;
    for (const PromptPicture& picture : request.pictures) {
      const int tokens = picture.width / 32 * (picture.height / 32);
      for (int i = -1; i <= tokens; ++i) {
        EXPECT_EQ(request.prompt.at(size_t(picture.begin + i)) == 258, i >= 0 && i < tokens) << i;
      }
      EXPECT_EQ(std::ssize(*picture.rgb), picture.width * picture.height * 3);
      all += std::to_string(picture.width) + "x" + std::to_string(picture.height) + " ";
    }
    return all;
  }
};

// How long reading takes would tell a client which pictures others have sent.
TEST_F(ChatInputTest, APictureIsReadInItsRequestsSpace) {
  for (const bool apart : {false, true}) {
    ServerOptions options = make_options();
    options.prefix_cache_per_key = apart;
    Api api(engine_, options);
    json body = chat(chat_part(kWide));
    body["cache_salt"] = "salt";
    HttpRequest request = post(kChatPath, body.dump());
    request.client = "192.0.2.1";
    EXPECT_EQ(answer(api, request).response->status, 200);
    EXPECT_EQ(engine_.picture_space(), engine_.submitted().back().cache_namespace);
    EXPECT_EQ(engine_.picture_space(), apart ? "192.0.2.1\nsalt" : "salt");
  }
}

TEST_F(ChatInputTest, EachApiBringsPicturesInTheirPlaces) {
  const json result = {{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", {text("Shot"), block(kWide)}}};
  const json call = {{"role", "assistant"},
                     {"content", {{{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", json::object()}}}}};
  const json tool = {{"role", "tool"}, {"tool_call_id", "c"}, {"content", {text("Shot"), chat_part(kWide)}}};
  const json output = {
      {"type", "function_call_output"}, {"call_id", "c"}, {"output", {text("Shot", "input_text"), item_part(kWide)}}};
  const std::tuple<const char*, json, const char*> cases[] = {
      {kChatPath, chat({text("Shot"), chat_part(kWide), text("and"), chat_part(kSquare)}), "64x32 32x32 "},
      {kChatPath, {{"messages", {user("A"), tool}}}, "64x32 "},
      {kResponses, items({text("Shot", "input_text"), item_part(kWide), item_part(kSquare)}), "64x32 32x32 "},
      {kResponses, {{"input", {user("A"), output}}}, "64x32 "},
      {kMessages, blocks({text("Shot"), block(kWide), text("and"), block(kSquare)}), "64x32 32x32 "},
      {kMessages, {{"max_tokens", 5}, {"messages", {user("A"), call, user({result})}}}, "64x32 "},
  };
  for (const auto& [path, body, expected] : cases) {
    ask(api_, path, body);
    EXPECT_EQ(pictures(), expected) << path;
    EXPECT_THAT(prompt(engine_), AllOf(HasSubstr(R"({"type":"text","text":"Shot"})"), HasSubstr("<pad><pad>"),
                                       Not(HasSubstr("base64")), Not(HasSubstr("left out"))));
  }
}

TEST_F(ChatInputTest, LettersOfAUserAreNoPicture) {
  ask(api_, kChatPath, chat({text("<pad>"), chat_part(kSquare), text("<pad> too")}));
  EXPECT_EQ(pictures(), "32x32 ");
  ask(api_, kChatPath, chat("<pad>"));
  EXPECT_TRUE(engine_.submitted().back().pictures.empty());
}

TEST_F(ChatInputTest, TokensOfPicturesCount) {
  const int64_t with =
      ask(api_, std::string(kMessages) + "/count_tokens", {{"messages", {user({block(kWide)})}}}).at("input_tokens");
  const int64_t less =
      ask(api_, std::string(kMessages) + "/count_tokens", {{"messages", {user({block(kSquare)})}}}).at("input_tokens");
  EXPECT_EQ(with, less + 1);
  EXPECT_GT(ask(api_, "/tokenize", chat({chat_part(kWide)})).at("count"), 2);
  const json usage = ask(api_, kChatPath, chat({chat_part(kWide)})).at("usage");
  EXPECT_EQ(usage.at("prompt_tokens"), std::ssize(engine_.submitted().back().prompt));
}

TEST_F(ChatInputTest, AKeptResponseKeepsItsPictures) {
  const json first = ask(api_, kResponses, items({item_part(kWide), text("What?", "input_text")}));
  ask(api_, kResponses, {{"input", "And now?"}, {"previous_response_id", first.at("id")}});
  EXPECT_EQ(pictures(), "64x32 ");
  const std::string path = std::string(kResponses) + "/" + first.at("id").get<std::string>() + "/input_items";
  HttpRequest get = post(path, "");
  get.method = "GET";
  const json content = answer(get).body().at("data").at(0).at("content");
  EXPECT_EQ(content.at(0).at("image_url"), data_url(kWide));
  EXPECT_EQ(content.at(1), text("What?", "input_text"));
}

// The server fetches URLs by its function, and reads files by their ids from its store.
TEST_F(ChatInputTest, PicturesAreReadElsewhere) {
  std::vector<std::string> asked;
  ServerOptions options = make_options();
  options.fetch_picture = [&](const std::string& url, size_t most, const std::atomic<bool>*) -> Result<std::string> {
    asked.push_back(url);
    EXPECT_LE(most, size_t{20} << 20);
    if (url.ends_with("gone.png")) return invalid_argument("it is gone");
    return std::string("64x32");
  };
  const TempFolder folder;
  options.file_store = *FileStore::open(folder.path(), {});
  auto writer = std::get<0>(options.file_store->begin(""));
  EXPECT_FALSE(writer->append("32x32"));
  const StoredFile kept = std::get<StoredFile>(writer->keep({.filename = "a.png", .purpose = "vision"}));
  Api api(engine_, options);
  const json file = {{"type", "input_image"}, {"file_id", kept.id}};
  const json url = {{"type", "input_image"}, {"image_url", "https://pictures.test/a.png"}};
  const json first = ask(api, kResponses, items({url, file}));
  EXPECT_EQ(pictures(), "64x32 32x32 ");
  const std::string path = std::string(kResponses) + "/" + first.at("id").get<std::string>() + "/input_items";
  const json shown = answer(api, get(path)).body().at("data").at(0).at("content");
  EXPECT_EQ(shown.at(0).at("image_url"), "https://pictures.test/a.png");
  EXPECT_EQ(shown.at(1).at("file_id"), kept.id);
  const json source = {{"type", "image"}, {"source", {{"type", "url"}, {"url", "https://pictures.test/b.png"}}}};
  ask(api, kMessages, blocks({source}));
  EXPECT_EQ(asked.back(), "https://pictures.test/b.png");
  const auto refused = [&](const json& part) {
    return answer(api, post(kResponses, items({part}).dump())).response->body;
  };
  json gone = url, unknown = file;
  gone["image_url"] = "https://pictures.test/gone.png";
  unknown["file_id"] = "file-none";
  EXPECT_THAT(refused(gone), HasSubstr("input[0].content[0]: it is gone."));
  EXPECT_THAT(refused(unknown), HasSubstr("there is no file"));
}

// Python and lines of files make prompts without a server.
TEST_F(ChatInputTest, PromptsOfTheCppApiHavePictures) {
  const std::string messages = json({user({text("Shot"), chat_part(kWide)})}).dump();
  const auto prompt = ChatFormat::prompt_of(engine_, {messages});
  ASSERT_TRUE(prompt.ok()) << prompt.error().message;
  ASSERT_EQ(prompt->pictures.size(), 1u);
  EXPECT_EQ(prompt->tokens.at(size_t(prompt->pictures[0].begin)), 258);
  EXPECT_THAT(ChatFormat::prompt_of(FakeEngine(), {messages}).error().message, HasSubstr("Only text is supported"));
  EXPECT_EQ(ChatFormat::prompt_of(engine_, {R"([{"role":"ipython","content":"\"image\""}])"})->pictures.size(), 0u);
}

TEST_F(ChatInputTest, RefusalsNameThePart) {
  json url = chat_part(kWide), nothing = block(kWide), many = json::array();
  url["image_url"] = "https://example.com/a.png";
  nothing["source"] = json::object();
  for (size_t i = 0; i <= kMaxPictures; ++i) many.push_back(block(kSquare));
  json cut = chat({chat_part(kWide)}), assistant = chat({chat_part(kWide)});
  cut["truncate_prompt_tokens"] = 5;
  assistant["messages"][0]["role"] = "assistant";
  const std::tuple<const char*, json, const char*> cases[] = {
      {kChatPath, chat({text("A"), url}), "messages[0].content[1]: the picture is elsewhere, and none is fetched here"},
      {kResponses, items({{{"type", "input_image"}, {"file_id", "file-1"}}}),
       "input[0].content[0]: this server keeps no files (--files-dir)"},
      {kMessages, blocks({nothing}), "messages[0].content[0] must hold a picture's bytes"},
      {kMessages, blocks({block("!!!!")}), "messages[0].content[0] must hold the picture's bytes in Base64"},
      {kChatPath, chat({chat_part("AAAA")}), "messages[0].content[0]: the picture is no file of a test."},
      {kMessages, blocks(many), "messages[0].content[16] is one picture too many"},
      {kChatPath, chat({chat_part(kLarge)}), "maximum context length is 4096"},
      {kChatPath, cut, "cannot be cut"},
      {kChatPath, chat({text("\xEF\xB7\x91"), chat_part(kWide)}), "U+FDD1"},
      {kChatPath, assistant, "is of type \"image_url\""},
  };
  for (const auto& [path, body, sentence] : cases) EXPECT_THAT(refusal(path, body), HasSubstr(sentence)) << path;
}

}  // namespace
}  // namespace volley::serve
