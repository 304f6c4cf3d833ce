//! Orders of messages that agents send and templates do not expect. Many read a system message only
//! at the start: they refuse a later one, or silently leave it out. Some refuse two messages of one
//! side in a row.

use serde_json::{json, Value as Json};

/// A conversation with instructions in each place after the start: after the user, after the
/// assistant, at the end.
pub fn probe_instructions() -> Vec<Json> {
    let roles = ["user", "system", "assistant", "system", "user", "system"];
    roles.iter().zip(words()).map(|(role, word)| json!({"role": role, "content": word})).collect()
}

fn words() -> impl Iterator<Item = String> {
    ('a'..='f').map(|letter| format!("volleyprobe{letter}"))
}

/// Whether a rendering of that conversation has every message in its place.
pub fn in_place(rendered: &str) -> bool {
    let mut rest = rendered;
    words().all(|word| match rest.split_once(&word) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// Appends later instructions to those at the start.
pub fn fold_instructions(messages: &mut Vec<Json>) {
    let (instructions, mut rest): (Vec<Json>, Vec<Json>) =
        messages.drain(..).partition(|message| has_role(message, "system"));
    let start = instructions.into_iter().reduce(|mut start, message| {
        append_content(&mut start, message);
        start
    });
    messages.extend(start);
    messages.append(&mut rest);
}

/// Joins neighbouring messages of one side that are only text. A user may speak twice: agents send
/// what surrounds a task before the task. Some templates insist on turns.
pub fn joined_neighbours(messages: &[Json]) -> Option<Vec<Json>> {
    if !messages.windows(2).any(|pair| is_text_of_same_side(&pair[0], &pair[1])) {
        return None;
    }
    let mut joined: Vec<Json> = Vec::with_capacity(messages.len());
    for message in messages {
        match joined.last_mut().filter(|last| is_text_of_same_side(last, message)) {
            Some(last) => append_content(last, message.clone()),
            None => joined.push(message.clone()),
        }
    }
    Some(joined)
}

fn is_text_of_same_side(one: &Json, other: &Json) -> bool {
    let is_text = |message: &Json| {
        message.as_object().is_some_and(|fields| fields.keys().all(|name| name == "role" || name == "content"))
    };
    ["user", "assistant"].iter().any(|role| has_role(one, role) && has_role(other, role))
        && is_text(one)
        && is_text(other)
}

fn has_role(message: &Json, role: &str) -> bool {
    message.get("role").is_some_and(|found| found == role)
}

/// Texts are joined by an empty line, lists of parts by nothing.
fn append_content(message: &mut Json, mut more: Json) {
    let more = more.get_mut("content").map(Json::take).unwrap_or_default();
    let content = &mut message["content"];
    match (&mut *content, more) {
        (_, Json::Null) => {}
        (Json::Null, more) => *content = more,
        (Json::String(text), Json::String(more)) if text.is_empty() || more.is_empty() => text.push_str(&more),
        (Json::String(text), Json::String(more)) => *text = format!("{text}\n\n{more}"),
        (content, more) => {
            let mut parts = to_parts(content.take());
            parts.append(&mut to_parts(more));
            *content = Json::Array(parts);
        }
    }
}

fn to_parts(content: Json) -> Vec<Json> {
    match content {
        Json::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    }
}
