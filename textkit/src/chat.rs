//! A model's chat templates: which one a request uses, its variables, and how messages are adapted
//! so that one template serves all forms in which clients send them.

use std::collections::HashSet;
use std::time::Duration;

use minijinja::value::Value;
use minijinja::Environment;
use serde_json::{json, Map, Value as Json};

use crate::abi::{Cancel, Failure};
use crate::environment::{chat_environment, render_message, strftime_now};
use crate::json::{self, to_template};
use crate::meter::Budget;
use crate::render_threads::{RenderThreads, LARGE, USUAL};
use crate::rendering::{Limits, Rendering, Unrendered, MAX_PIECES};
use crate::template::Template;
use crate::turns;

/// Limits of one rendering. A template is a program that came with the weights: without limits it
/// could keep the start, or every request, from ever ending. A long conversation with many tools
/// takes some 100,000 steps. No body of a request has as many bytes: a template that prints them
/// repeats what it was sent.
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
    pub jinja: Option<&'a str>,          // chat_template.jinja
    pub tool_use_jinja: Option<&'a str>, // additional_chat_templates/tool_use.jinja
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
    template: Template,
    content: Content,
    prints_null: bool, // a turn of tool calls whose content is null; if not, the content becomes empty text
    text_arguments: bool, // the arguments of calls stay text
    late_instructions: bool, // prints a system message behind others where it stands
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
        let environment = chat_environment();
        let mut template = ChatTemplate { environment, limits: PROBE, special_tokens, default: None, tool_use: None };
        template.limit(PROBE);
        for TemplateSource { name, file, text } in template_sources(&files, &config)? {
            let unusable = |why: String| format!("the chat template of {file} {why}");
            let named = template
                .probe_all(name, text)
                .map_err(|failure| Failure { message: unusable(failure.message), status: failure.status })?;
            *(if name == DEFAULT { &mut template.default } else { &mut template.tool_use }) = Some(named);
        }
        template.limit(REQUEST);
        Ok(template)
    }

    fn probe_all(&self, name: &'static str, text: &str) -> Result<Named, Failure> {
        let template = Template::new(name, text)?;
        let limit = |limit: String| {
            Failure::data_loss(format!(
                "{limit} for one short message: put a template that ends into the model's folder"
            ))
        };
        let content = self.probe_content(&template).map_err(limit)?;
        let text_arguments = self.probe_text_arguments(&template, content).map_err(limit)?;
        let prints_null = self.probe_null(&template, content, text_arguments).map_err(limit)?;
        let late_instructions = self
            .probe_messages(&template, content, turns::probe_instructions(), true)
            .map_err(limit)?
            .is_some_and(|text| turns::in_place(&text));
        Ok(Named { template, content, prints_null, text_arguments, late_instructions })
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
            convert_arguments(message, template.text_arguments);
        }
        if !template.late_instructions {
            turns::fold_instructions(&mut messages);
        }
        let marker = match input.continue_final_message {
            true => Some(mark_final_message(&mut messages, &[input.messages, input.tools, input.kwargs])?),
            false => None,
        };
        let joined = turns::joined_neighbours(&messages);
        let variables = self.variables(messages, tools, kwargs, input.add_generation_prompt);
        let turns = joined.map(|joined| {
            let mut variables = variables.clone();
            variables.insert("messages".into(), Json::Array(joined));
            variables
        });
        let size = input.messages.len() + input.tools.len() + input.kwargs.len();
        let threads = if size > LARGE_INPUT { &LARGE } else { &USUAL };
        let render =
            |variables| self.render_template(threads, &template.template, variables, input.now, input.cancel);
        let mut text = render(variables);
        if let (Err(Unrendered::Template(_)), Some(turns)) = (&text, turns) {
            text = render(turns).or(text);
        }
        let text = text.map_err(|why| match why {
            Unrendered::Limit(limit) => Failure::invalid(format!(
                "the model's chat template {limit} for these messages: send fewer or shorter messages and tools"
            )),
            Unrendered::Template(error) => Failure::invalid(render_message(&error)),
            Unrendered::Ended(failure) => failure,
        })?;
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

    /// The variables of a template.
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
        template: &Template,
        variables: Map<String, Json>,
        now: i64,
        cancel: Cancel,
    ) -> Result<String, Unrendered> {
        let mut context: Vec<(String, Value)> =
            variables.iter().map(|(name, value)| (name.clone(), to_template(value))).collect();
        context.push(("strftime_now".into(), strftime_now(now)));
        drop(variables);
        let context = Value::from_pairs(context);
        Rendering { limits: self.limits, cancel, environment: &self.environment, template, context }.text_on(threads)
    }

    /// None if the template refuses these messages, Err if it reaches a limit.
    fn probe(
        &self,
        template: &Template,
        messages: Vec<Json>,
        add_generation_prompt: bool,
    ) -> Result<Option<String>, String> {
        let variables = self.variables(messages, None, Map::new(), add_generation_prompt);
        match self.render_template(&USUAL, template, variables, 0, Cancel::NEVER) {
            Ok(text) => Ok(Some(text)),
            Err(Unrendered::Limit(limit)) => Err(limit),
            Err(Unrendered::Template(_)) => Ok(None),
            Err(Unrendered::Ended(failure)) => Err(failure.message),
        }
    }

    /// Finds out by rendering one word both ways, which is surer than reading the template's source.
    fn probe_content(&self, template: &Template) -> Result<Content, String> {
        const WORD: &str = "volleyprobe";
        let render = |content: Json| {
            let messages = vec![json!({"role": "user", "content": content})];
            self.probe(template, messages, true).map(Option::unwrap_or_default)
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

    /// Whether a call's arguments must stay text, as clients send them: a template that adds them
    /// to text refuses an object.
    fn probe_text_arguments(&self, template: &Template, content: Content) -> Result<bool, String> {
        let render = |arguments: Json| self.probe_call(template, content, Json::Null, arguments);
        let texts = |arguments: Json| self.probe_call(template, content, json!("a"), arguments);
        let object = json!({"volleyprobe": 1});
        if render(object.clone())?.is_some() || texts(object)?.is_some() {
            return Ok(false);
        }
        let text = json!("{\"volleyprobe\": 1}");
        Ok(render(text.clone())?.is_some() || texts(text)?.is_some())
    }

    /// How the template prints a turn with a call; None if it refuses the turn.
    fn probe_call(
        &self,
        template: &Template,
        content: Content,
        answer: Json,
        arguments: Json,
    ) -> Result<Option<String>, String> {
        let call = json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages = vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": answer, "tool_calls": [call]}),
        ];
        self.probe_messages(template, content, messages, false)
    }

    /// Clients send null as the content of a turn that is tool calls only. Some templates look for it, others add it to
    /// text and fail, or print the word None.
    fn probe_null(&self, template: &Template, content: Content, text_arguments: bool) -> Result<bool, String> {
        let arguments = if text_arguments { json!("{}") } else { json!({}) };
        let render = |answer: Json| self.probe_call(template, content, answer, arguments.clone());
        Ok(match (render(Json::Null)?, render(json!(""))?) {
            (Some(null), Some(empty)) => {
                ["None", "none"].iter().all(|word| null.matches(word).count() == empty.matches(word).count())
            }
            (None, Some(_)) => false,
            _ => true,
        })
    }

    /// How the template prints a conversation; None if it refuses it.
    fn probe_messages(
        &self,
        template: &Template,
        content: Content,
        mut messages: Vec<Json>,
        add_generation_prompt: bool,
    ) -> Result<Option<String>, String> {
        for (index, message) in messages.iter_mut().enumerate() {
            if convert_content(message, content, index).is_err() {
                return Ok(None);
            }
        }
        self.probe(template, messages, add_generation_prompt)
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

struct TemplateSource<'a> {
    name: &'static str,
    file: &'static str,
    text: &'a str,
}

/// The templates that requests can use. If there are files of templates, those of
/// tokenizer_config.json are ignored.
fn template_sources<'a>(files: &Files<'a>, config: &'a Map<String, Json>) -> Result<Vec<TemplateSource<'a>>, Failure> {
    let of_file = |name, file, text: Option<&'a str>| text.map(|text| TemplateSource { name, file, text });
    let sources: Vec<TemplateSource> = [
        of_file(DEFAULT, "chat_template.jinja", files.jinja),
        of_file(TOOL_USE, "additional_chat_templates/tool_use.jinja", files.tool_use_jinja),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !sources.is_empty() {
        return Ok(sources);
    }
    let entries = configured(config.get("chat_template").unwrap_or(&Json::Null)).ok_or_else(|| {
        Failure::data_loss(
            "chat_template in tokenizer_config.json must be a string, a list of {name, template} objects, or an \
             object of templates by their names",
        )
    })?;
    if entries.len() > MAX_TEMPLATES {
        return Err(Failure::data_loss(format!(
            "chat_template in tokenizer_config.json has {} templates, more than {MAX_TEMPLATES}",
            entries.len()
        )));
    }
    let of_config = |(name, text): (&str, &'a str)| {
        let name = match name {
            "default" => DEFAULT,
            "tool_use" => TOOL_USE,
            _ => return None,
        };
        Some(TemplateSource { name, file: "tokenizer_config.json", text })
    };
    Ok(entries.into_iter().filter_map(of_config).collect())
}

/// Names and texts of the templates in tokenizer_config.json; None where they have another form.
fn configured(templates: &Json) -> Option<Vec<(&str, &str)>> {
    match templates {
        Json::Null => Some(Vec::new()),
        Json::String(text) => Some(vec![("default", text)]),
        Json::Array(list) => {
            list.iter().map(|entry| Some((entry.get("name")?.as_str()?, entry.get("template")?.as_str()?))).collect()
        }
        Json::Object(map) => map.iter().map(|(name, text)| Some((name.as_str(), text.as_str()?))).collect(),
        _ => None,
    }
}

fn parse(what: &str, text: &str) -> Result<Json, Failure> {
    json::parse(text).map_err(|error| Failure::invalid(format!("{what} must be JSON: {error}")))
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

/// Clients send the arguments of a tool call as JSON text, templates expect the object, or the text (`as_text`). Text that
/// holds no object stays. Arguments that are empty, missing or null are an object without members.
fn convert_arguments(message: &mut Json, as_text: bool) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Json::as_array_mut) else { return };
    for function in calls.iter_mut().filter_map(|call| call.get_mut("function")?.as_object_mut()) {
        let arguments = function.entry("arguments").or_insert(Json::Null);
        let parsed = match &*arguments {
            Json::Null => Json::Null,
            Json::String(text) if text.trim().is_empty() => Json::Null,
            Json::String(text) => json::parse(text).unwrap_or(json!("")),
            other => other.clone(),
        };
        match (parsed, arguments.is_string()) {
            (Json::Null, _) => *arguments = if as_text { json!("{}") } else { json!({}) },
            (object @ Json::Object(_), true) if !as_text => *arguments = object,
            (object @ Json::Object(_), false) if as_text => *arguments = json!(json::text_of(&object)),
            _ => (),
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
