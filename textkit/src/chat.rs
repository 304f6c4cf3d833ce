//! A model's chat templates: which one a request takes, the variables it sees, and what is done to messages so that one
//! template serves the forms in which clients send them.

use std::collections::HashSet;
use std::time::Duration;

use minijinja::value::Value;
use minijinja::Environment;
use serde_json::{json, Map, Value as Json};

use crate::abi::{Cancel, Failure};
use crate::environment::{
    chat_environment, longest_expression, render_message, strftime_now, without_generation_blocks,
};
use crate::json::to_template;
use crate::meter::Budget;
use crate::render_threads::{RenderThreads, LARGE, USUAL};
use crate::rendering::{render_within, Limits, Unrendered, MAX_PIECES};

/// What one rendering may take. A template is a program that came with the weights: without limits it could keep the
/// start, or every request, from ever ending. A long conversation with many tools takes some 100,000 steps. No body of a
/// request has as many bytes: a template that prints them repeats what it was sent.
const REQUEST: Limits = Limits {
    steps: 20_000_000,
    bytes: 64 << 20,
    budget: Budget { bytes: 512 << 20, pieces: MAX_PIECES, total_bytes: 16 << 30, cpu: Duration::from_secs(60) },
};
/// One short message at the start, which takes a few hundred steps.
const PROBE: Limits = Limits {
    steps: 100_000,
    bytes: 1 << 20,
    budget: Budget { bytes: 64 << 20, pieces: MAX_PIECES, total_bytes: 256 << 20, cpu: Duration::from_secs(10) },
};
/// Bytes of messages, tools and arguments above which a conversation is rendered among the large ones.
const LARGE_INPUT: usize = 1 << 18;
/// The longest templates that models come with have some 30 KiB.
const MAX_SOURCE_BYTES: usize = 1 << 18;

/// Words and signs between `{{` and `}}`, or `{%` and `%}`. The engine reads an expression by recursion.
const MAX_EXPRESSION: usize = 2_000;
/// Templates by name in tokenizer_config.json; models have up to four.
const MAX_TEMPLATES: usize = 64;

const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "chat_template.tool_use";
/// Variables that belong to the request itself; template arguments may not replace them.
const RESERVED: [&str; 4] = ["messages", "tools", "add_generation_prompt", "strftime_now"];

/// Contents of a model folder's files; None where there is no such file.
pub struct Files<'a> {
    pub tokenizer_config: Option<&'a str>,
    pub special_tokens_map: Option<&'a str>,
    pub jinja: Option<&'a str>,
}

pub struct Input<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub kwargs: &'a str,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    pub now: i64,
    pub cancel: Cancel,
}

/// The forms of a message's `content` that a template prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Text,  // strings only: arrays of text parts are joined
    Parts, // arrays only: strings become an array of one text part
    Both,
}

struct Named {
    name: &'static str,
    content: Content,
    prints_null: bool, // a turn of tool calls whose content is null; if not, the content becomes empty text
    text_arguments: bool, // the arguments of calls stay text
}

pub struct ChatTemplate {
    environment: Environment<'static>,
    limits: Limits,
    special_tokens: Map<String, Json>,
    default: Option<Named>,
    tool_use: Option<Named>,
}

impl ChatTemplate {
    pub fn new(files: Files) -> Result<ChatTemplate, Failure> {
        let config = parse_config("tokenizer_config.json", files.tokenizer_config)?;
        let mut special_tokens = Map::new();
        collect_special_tokens(
            &parse_config("special_tokens_map.json", files.special_tokens_map)?,
            &mut special_tokens,
        );
        collect_special_tokens(&config, &mut special_tokens);
        let environment = chat_environment().map_err(|error| Failure::internal(error.to_string()))?;
        let mut template = ChatTemplate { environment, limits: PROBE, special_tokens, default: None, tool_use: None };
        template.limit(PROBE);
        let file = if files.jinja.is_some() { "chat_template.jinja" } else { "tokenizer_config.json" };
        for (name, source) in template_sources(files.jinja, &config)? {
            let unusable = |why: String| Failure::data_loss(format!("the chat template of {file} {why}"));
            if source.len() > MAX_SOURCE_BYTES {
                return Err(unusable(format!("has {} bytes, more than {MAX_SOURCE_BYTES}", source.len())));
            }
            if longest_expression(source) > MAX_EXPRESSION {
                return Err(unusable(format!("has an expression of more than {MAX_EXPRESSION} words and signs")));
            }
            template
                .environment
                .add_template_owned(name, without_generation_blocks(source))
                .map_err(|error| unusable(format!("does not compile: {error}")))?;
            let limit = |limit: String| {
                unusable(format!("{limit} for one short message: put a template that ends into the model's folder"))
            };
            let content = template.probe_content(name).map_err(limit)?;
            let text_arguments = template.probe_text_arguments(name, content).map_err(limit)?;
            let prints_null = template.probe_null(name, content, text_arguments).map_err(limit)?;
            let named = Some(Named { name, content, prints_null, text_arguments });
            *(if name == DEFAULT { &mut template.default } else { &mut template.tool_use }) = named;
        }
        template.limit(REQUEST);
        Ok(template)
    }

    fn limit(&mut self, limits: Limits) {
        self.environment.set_fuel(Some(limits.steps));
        self.limits = limits;
    }

    pub fn render(&self, input: &Input) -> Result<String, Failure> {
        if input.add_generation_prompt && input.continue_final_message {
            return Err(Failure::invalid(
                "add_generation_prompt and continue_final_message exclude each other: set one of them to false",
            ));
        }
        let mut messages = parse_messages(input.messages)?;
        let tools = parse_tools(input.tools)?;
        let kwargs = parse_kwargs(input.kwargs)?;
        let template = self.choose(tools.as_ref())?;
        for (index, message) in messages.iter_mut().enumerate() {
            if !template.prints_null {
                fill_content(message);
            }
            convert_content(message, template.content, index)?;
            if !template.text_arguments {
                parse_tool_arguments(message);
            }
        }
        let marker = match input.continue_final_message {
            true => Some(mark_final_message(&mut messages, &[input.messages, input.tools, input.kwargs])?),
            false => None,
        };
        let variables = self.variables(messages, tools, kwargs, input.add_generation_prompt);
        let size = input.messages.len() + input.tools.len() + input.kwargs.len();
        let threads = if size > LARGE_INPUT { &LARGE } else { &USUAL };
        let text =
            self.render_template(threads, template.name, variables, input.now, input.cancel).map_err(
                |why| match why {
                    Unrendered::Limit(limit) => Failure::invalid(format!(
                    "the model's chat template {limit} for these messages: send fewer or shorter messages and tools"
                )),
                    Unrendered::Template(error) => Failure::invalid(render_message(&error)),
                    Unrendered::Ended(failure) => failure,
                },
            )?;
        match marker {
            Some(marker) => cut_at_marker(text, &marker),
            None => Ok(text),
        }
    }

    fn choose(&self, tools: Option<&Json>) -> Result<&Named, Failure> {
        let has_tools = tools.and_then(Json::as_array).is_some_and(|tools| !tools.is_empty());
        let tool_use = self.tool_use.as_ref().filter(|_| has_tools);
        tool_use.or(self.default.as_ref()).ok_or_else(|| {
            Failure::precondition(
                "this model has no chat template: send a plain prompt to the completions endpoint, or put a \
                 chat_template.jinja into the model's folder",
            )
        })
    }

    /// What a template sees beside functions.
    fn variables(
        &self,
        messages: Vec<Json>,
        tools: Option<Json>,
        kwargs: Map<String, Json>,
        add_generation_prompt: bool,
    ) -> Map<String, Json> {
        let mut variables: Map<String, Json> = self.special_tokens.clone();
        variables.insert("documents".into(), Json::Null);
        variables.extend(kwargs);
        variables.insert("messages".into(), Json::Array(messages));
        variables.insert("tools".into(), tools.unwrap_or(Json::Null));
        variables.insert("add_generation_prompt".into(), Json::Bool(add_generation_prompt));
        variables
    }

    fn render_template(
        &self,
        threads: &'static RenderThreads,
        name: &str,
        variables: Map<String, Json>,
        now: i64,
        cancel: Cancel,
    ) -> Result<String, Unrendered> {
        let mut context: Vec<(String, Value)> =
            variables.iter().map(|(name, value)| (name.clone(), to_template(value))).collect();
        context.push(("strftime_now".into(), strftime_now(now)));
        drop(variables);
        render_within(threads, self.limits, cancel, &self.environment, name, Value::from_pairs(context))
    }

    /// None where the template refuses these messages, Err with the limit that it runs into.
    fn probe(&self, name: &str, messages: Vec<Json>, add_generation_prompt: bool) -> Result<Option<String>, String> {
        let variables = self.variables(messages, None, Map::new(), add_generation_prompt);
        match self.render_template(&USUAL, name, variables, 0, Cancel::NEVER) {
            Ok(text) => Ok(Some(text)),
            Err(Unrendered::Limit(limit)) => Err(limit),
            Err(Unrendered::Template(_)) => Ok(None),
            Err(Unrendered::Ended(failure)) => Err(failure.message),
        }
    }

    /// Finds out by rendering one word both ways, which is surer than reading the template's source.
    fn probe_content(&self, name: &str) -> Result<Content, String> {
        const WORD: &str = "volleyprobe";
        let render = |content: Json| {
            let messages = vec![json!({"role": "user", "content": content})];
            self.probe(name, messages, true).map(Option::unwrap_or_default)
        };
        let text = render(json!(WORD))?;
        let parts = render(json!([{"type": "text", "text": WORD}]))?;
        // A template for strings that prints an array as it stands shows the key's quotes beside the word.
        let prints_parts =
            parts.contains(WORD) && !parts.contains(&format!("'{WORD}'")) && !parts.contains(&format!("\"{WORD}\""));
        Ok(match (text.contains(WORD), prints_parts) {
            (true, true) if text == parts => Content::Both,
            (false, true) => Content::Parts,
            _ => Content::Text,
        })
    }

    /// Whether a call's arguments must stay the text as which clients send them: a template that adds them to text refuses
    /// an object.
    fn probe_text_arguments(&self, name: &str, content: Content) -> Result<bool, String> {
        let render = |arguments: Json| self.probe_call(name, content, Json::Null, arguments);
        let texts = |arguments: Json| self.probe_call(name, content, json!("a"), arguments);
        let object = json!({"volleyprobe": 1});
        if render(object.clone())?.is_some() || texts(object)?.is_some() {
            return Ok(false);
        }
        let text = json!("{\"volleyprobe\": 1}");
        Ok(render(text.clone())?.is_some() || texts(text)?.is_some())
    }

    /// What a turn with a call looks like; none where the template refuses it.
    fn probe_call(
        &self,
        name: &str,
        content: Content,
        answer: Json,
        arguments: Json,
    ) -> Result<Option<String>, String> {
        let call = json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let mut messages = vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": answer, "tool_calls": [call]}),
        ];
        for (index, message) in messages.iter_mut().enumerate() {
            if convert_content(message, content, index).is_err() {
                return Ok(None);
            }
        }
        self.probe(name, messages, false)
    }

    /// Clients send null as the content of a turn that is tool calls only. Some templates look for it, others add it to
    /// text and fail, or print the word None.
    fn probe_null(&self, name: &str, content: Content, text_arguments: bool) -> Result<bool, String> {
        let arguments = if text_arguments { json!("{}") } else { json!({}) };
        let render = |answer: Json| self.probe_call(name, content, answer, arguments.clone());
        Ok(match (render(Json::Null)?, render(json!(""))?) {
            (Some(null), Some(empty)) => {
                ["None", "none"].iter().all(|word| null.matches(word).count() == empty.matches(word).count())
            }
            (None, Some(_)) => false,
            _ => true,
        })
    }
}

fn parse_config(file: &str, contents: Option<&str>) -> Result<Map<String, Json>, Failure> {
    match contents.map(serde_json::from_str) {
        None => Ok(Map::new()),
        Some(Ok(Json::Object(map))) => Ok(map),
        Some(Ok(_)) => Err(Failure::data_loss(format!("{file} must hold a JSON object"))),
        Some(Err(error)) => Err(Failure::data_loss(format!("{file} is not JSON: {error}"))),
    }
}

/// bos_token, eos_token and so on: strings, or objects with the string in `content`.
fn collect_special_tokens(config: &Map<String, Json>, tokens: &mut Map<String, Json>) {
    let text = |value: &Json| match value {
        Json::String(_) => Some(value.clone()),
        Json::Object(token) => token.get("content").filter(|content| content.is_string()).cloned(),
        _ => None,
    };
    for (key, value) in config {
        if key == "additional_special_tokens" {
            let list = value.as_array().map(|list| list.iter().filter_map(text).collect());
            list.map(|list| tokens.insert(key.clone(), Json::Array(list)));
        } else if key.ends_with("_token") {
            text(value).map(|token| tokens.insert(key.clone(), token));
        }
    }
}

/// The templates that requests can reach. A chat_template.jinja stands alone.
fn template_sources<'a>(
    jinja: Option<&'a str>,
    config: &'a Map<String, Json>,
) -> Result<Vec<(&'static str, &'a str)>, Failure> {
    if let Some(source) = jinja {
        return Ok(vec![(DEFAULT, source)]);
    }
    let malformed = || {
        Failure::data_loss(
            "chat_template in tokenizer_config.json must be a string or a list of {name, template} objects",
        )
    };
    match config.get("chat_template") {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(source)) => Ok(vec![(DEFAULT, source)]),
        Some(Json::Array(list)) => {
            if list.len() > MAX_TEMPLATES {
                return Err(Failure::data_loss(format!(
                    "chat_template in tokenizer_config.json has {} templates, more than {MAX_TEMPLATES}",
                    list.len()
                )));
            }
            let mut sources = Vec::new();
            for entry in list {
                let name = entry.get("name").and_then(Json::as_str).ok_or_else(malformed)?;
                let source = entry.get("template").and_then(Json::as_str).ok_or_else(malformed)?;
                match name {
                    "default" => sources.push((DEFAULT, source)),
                    "tool_use" => sources.push((TOOL_USE, source)),
                    _ => {}
                }
            }
            Ok(sources)
        }
        Some(_) => Err(malformed()),
    }
}

fn parse(what: &str, text: &str) -> Result<Json, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::invalid(format!("{what} must be JSON: {error}")))
}

fn parse_messages(text: &str) -> Result<Vec<Json>, Failure> {
    let Json::Array(messages) = parse("messages", text)? else {
        return Err(Failure::invalid("messages must be a JSON array of objects"));
    };
    match messages.iter().position(|message| !message.is_object()) {
        Some(index) => Err(Failure::invalid(format!("messages[{index}] must be an object with a role and content"))),
        None => Ok(messages),
    }
}

fn parse_tools(text: &str) -> Result<Option<Json>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    match parse("tools", text)? {
        tools @ Json::Array(_) => Ok(Some(tools)),
        _ => Err(Failure::invalid("tools must be a JSON array")),
    }
}

fn parse_kwargs(text: &str) -> Result<Map<String, Json>, Failure> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    let Json::Object(kwargs) = parse("chat template arguments", text)? else {
        return Err(Failure::invalid("chat template arguments must be a JSON object"));
    };
    match RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
        Some(name) => {
            Err(Failure::invalid(format!("chat template arguments may not set {name}: it is set by the request")))
        }
        None => Ok(kwargs),
    }
}

/// Brings `content` into a form that the template prints.
fn convert_content(message: &mut Json, accepted: Content, index: usize) -> Result<(), Failure> {
    let Some(content) = message.get_mut("content") else { return Ok(()) };
    match (accepted, &*content) {
        (Content::Text, Json::Array(parts)) => *content = Json::String(join_text_parts(parts, index)?),
        (Content::Parts, Json::String(text)) => *content = json!([{"type": "text", "text": text}]),
        _ => {}
    }
    Ok(())
}

fn fill_content(message: &mut Json) {
    let Some(fields) = message.as_object_mut().filter(|fields| fields.get("role") == Some(&json!("assistant"))) else {
        return;
    };
    let content = fields.entry("content").or_insert(Json::Null);
    if content.is_null() {
        *content = json!("");
    }
}

fn join_text_parts(parts: &[Json], index: usize) -> Result<String, Failure> {
    let mut texts = Vec::with_capacity(parts.len());
    for (part_index, part) in parts.iter().enumerate() {
        let text = part.get("text").filter(|_| part.get("type").is_some_and(|kind| kind == "text"));
        texts.push(text.or(Some(part)).and_then(Json::as_str).ok_or_else(|| {
            Failure::invalid(format!(
                "messages[{index}].content[{part_index}] is not a text part, and this model's chat template takes text only"
            ))
        })?);
    }
    Ok(texts.join("\n"))
}

/// Clients send the arguments of a tool call as JSON text, templates expect the object. Text that holds no object stays.
fn parse_tool_arguments(message: &mut Json) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Json::as_array_mut) else { return };
    for arguments in calls.iter_mut().filter_map(|call| call.pointer_mut("/function/arguments")) {
        if let Some(Ok(parsed @ Json::Object(_))) = arguments.as_str().map(serde_json::from_str) {
            *arguments = parsed;
        }
    }
}

/// One of many words, so that a text that holds some of them on purpose is looked through once and not once for each.
fn unused_marker(originals: &[&str]) -> String {
    const WORD: &str = "FinalMessageEndsHere";
    const DIGITS: usize = 8;
    let mut used = HashSet::new();
    for original in originals {
        for (start, _) in original.match_indices(WORD) {
            let digits = original.get(start + WORD.len()..start + WORD.len() + DIGITS);
            used.extend(digits.and_then(|digits| digits.parse::<u32>().ok()));
        }
    }
    let number = (0..).find(|number| !used.contains(number)).unwrap_or_default();
    format!("{WORD}{number:0DIGITS$}")
}

/// Appends a word that occurs nowhere else, and a space, to the final message's text. Where the word comes out is where
/// the message ends, whatever the template prints after it; whether the space comes out tells if the template trims.
fn mark_final_message(messages: &mut [Json], originals: &[&str]) -> Result<String, Failure> {
    let marker = unused_marker(originals);
    let text = messages.last_mut().and_then(|message| message.get_mut("content")).and_then(|content| match content {
        Json::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        content => Some(content),
    });
    match text {
        Some(Json::String(text)) => text.push_str(&format!("{marker} ")),
        _ => return Err(Failure::invalid("continue_final_message needs a final message with text content")),
    }
    Ok(marker)
}

fn cut_at_marker(mut text: String, marker: &str) -> Result<String, Failure> {
    let Some(end) = text.rfind(marker) else {
        return Err(Failure::invalid(
            "continue_final_message cannot be used here: the chat template leaves the final message's content out",
        ));
    };
    let trimmed = !text[end + marker.len()..].starts_with(' ');
    text.truncate(end);
    if trimmed {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}
