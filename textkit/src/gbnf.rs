//! Grammars in GBNF (llama.cpp's notation, which xgrammar's EBNF shares) as the grammar engine takes them.
//!
//! The engine separates lexing, which takes the longest match, from parsing. GBNF has no lexer: `[a-z]+ "end"` accepts
//! "lend". So a grammar without recursion becomes one regular expression, and any other a Lark grammar whose terminals
//! are single characters: both accept exactly the texts that the GBNF says.

use std::collections::HashMap;
use std::fmt::Write;

use crate::abi::Failure;

#[derive(Debug, PartialEq, Eq)]
pub enum Converted {
    Regex(String),
    Lark(String),
}

/// Bytes of the regular expression above which a grammar stays a grammar: rules that use each other twice each grow
/// exponentially when written out.
const MAX_REGEX: usize = 1 << 15;
/// Groups within one another, above which it does, too: parsers of regular expressions take 250 levels, and a group is
/// up to three of them.
const MAX_GROUPS: usize = 80;
const MAX_NESTING: usize = 60;
const MAX_REPEAT: usize = 1_000;

#[derive(Debug)]
enum Expr {
    Literal(String),
    Class(String), // a regular expression for one character
    Token(String), // <name> or <[id]>: a token of the vocabulary
    Rule(String),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    Repeat(Box<Expr>, usize, Option<usize>),
}

struct Rule {
    name: String,
    body: Expr,
}

/// The text as a regular expression that matches it alone.
pub fn escaped(text: &str) -> String {
    let mut regex = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || c == ' ' || c == '_' {
            regex.push(c);
        } else {
            regex.push_str(&code_point(c));
        }
    }
    regex
}

fn code_point(c: char) -> String {
    format!("\\x{{{:x}}}", c as u32)
}

pub fn convert(text: &str) -> Result<Converted, Failure> {
    let rules = Parser { rest: text, text }.grammar()?;
    let index: HashMap<&str, usize> = rules.iter().enumerate().map(|(i, rule)| (rule.name.as_str(), i)).collect();
    if index.len() < rules.len() {
        let twice = rules.iter().enumerate().find(|(i, rule)| index[rule.name.as_str()] != *i);
        return Err(Failure::invalid(format!("the rule {} is defined twice", twice.map_or("", |(_, r)| &r.name))));
    }
    let Some(&root) = index.get("root") else {
        return Err(Failure::invalid("the grammar has no rule named root (root ::= ...)"));
    };
    for rule in &rules {
        check_references(&rule.body, &index)?;
    }
    let mut writer =
        RegexWriter { rules: &rules, index: &index, open: vec![false; rules.len()], groups: 0, regex: String::new() };
    if writer.rule(root).is_some() {
        return Ok(Converted::Regex(writer.regex));
    }
    let mut lark = format!("start: r{root}\n");
    for (i, rule) in rules.iter().enumerate() {
        let _ = write!(lark, "r{i}: ");
        write_lark(&rule.body, &index, &mut lark);
        lark.push('\n');
    }
    Ok(Converted::Lark(lark))
}

fn check_references(expr: &Expr, index: &HashMap<&str, usize>) -> Result<(), Failure> {
    match expr {
        Expr::Rule(name) if !index.contains_key(name.as_str()) => {
            Err(Failure::invalid(format!("the rule {name} is used but not defined")))
        }
        Expr::Sequence(items) | Expr::Choice(items) => items.iter().try_for_each(|item| check_references(item, index)),
        Expr::Repeat(item, _, _) => check_references(item, index),
        _ => Ok(()),
    }
}

/// Writes rules out as one regular expression; None where that cannot be.
struct RegexWriter<'a> {
    rules: &'a [Rule],
    index: &'a HashMap<&'a str, usize>,
    open: Vec<bool>, // rules being written: meeting one again is recursion
    groups: usize,   // being written
    regex: String,
}

impl RegexWriter<'_> {
    fn rule(&mut self, rule: usize) -> Option<()> {
        if std::mem::replace(&mut self.open[rule], true) {
            return None;
        }
        let rules = self.rules;
        self.expr(&rules[rule].body)?;
        self.open[rule] = false;
        Some(())
    }

    fn expr(&mut self, expr: &Expr) -> Option<()> {
        match expr {
            Expr::Literal(text) => self.regex.push_str(&escaped(text)),
            Expr::Class(class) => self.regex.push_str(class),
            Expr::Token(_) => return None,
            Expr::Rule(name) => self.group(|writer| writer.rule(writer.index[name.as_str()]))?,
            Expr::Sequence(items) => items.iter().try_for_each(|item| self.expr(item))?,
            Expr::Choice(items) => self.group(|writer| {
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        writer.regex.push('|');
                    }
                    writer.expr(item)?;
                }
                Some(())
            })?,
            Expr::Repeat(item, low, high) => {
                self.group(|writer| writer.expr(item))?;
                self.regex.push_str(&repeat(*low, *high));
            }
        }
        (self.regex.len() <= MAX_REGEX).then_some(())
    }

    fn group(&mut self, body: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        if self.groups == MAX_GROUPS {
            return None;
        }
        self.groups += 1;
        self.regex.push_str("(?:");
        body(self)?;
        self.regex.push(')');
        self.groups -= 1;
        Some(())
    }
}

fn repeat(low: usize, high: Option<usize>) -> String {
    match (low, high) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (low, None) => format!("{{{low},}}"),
        (low, Some(high)) => format!("{{{low},{high}}}"),
    }
}

fn write_lark(expr: &Expr, index: &HashMap<&str, usize>, lark: &mut String) {
    match expr {
        Expr::Literal(text) if text.is_empty() => lark.push_str("\"\""),
        Expr::Literal(text) => {
            for c in text.chars() {
                let _ = write!(lark, "/{}/ ", code_point(c));
            }
        }
        Expr::Class(class) => {
            let _ = write!(lark, "/{class}/");
        }
        Expr::Token(name) => lark.push_str(name),
        Expr::Rule(name) => {
            let _ = write!(lark, "r{}", index[name.as_str()]);
        }
        Expr::Sequence(items) if items.is_empty() => lark.push_str("\"\""),
        Expr::Sequence(items) => {
            for item in items {
                write_lark(item, index, lark);
                lark.push(' ');
            }
        }
        Expr::Choice(items) => {
            lark.push('(');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    lark.push_str(" | ");
                }
                write_lark(item, index, lark);
            }
            lark.push(')');
        }
        Expr::Repeat(item, low, high) => {
            lark.push('(');
            write_lark(item, index, lark);
            lark.push(')');
            lark.push_str(&repeat(*low, *high));
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    text: &'a str,
}

impl Parser<'_> {
    fn grammar(&mut self) -> Result<Vec<Rule>, Failure> {
        let mut rules = Vec::new();
        self.space();
        while !self.rest.is_empty() {
            let Some(name) = self.rule_head() else {
                return Err(self.wrong("a rule (name ::= ...)"));
            };
            let body = self.choice(0)?;
            rules.push(Rule { name, body });
        }
        Ok(rules)
    }

    /// Space, line breaks and comments. A rule ends where the next begins, so that its alternatives may stand on lines of
    /// their own.
    fn space(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            let Some(comment) = self.rest.strip_prefix('#') else { return };
            self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
        }
    }

    fn name(&mut self) -> Option<String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_string())
    }

    /// `name ::=`, or nothing read.
    fn rule_head(&mut self) -> Option<String> {
        let before = self.rest;
        let name = self.name();
        self.space();
        match (name, self.rest.strip_prefix("::=")) {
            (Some(name), Some(rest)) => {
                self.rest = rest;
                self.space();
                Some(name)
            }
            _ => {
                self.rest = before;
                None
            }
        }
    }

    fn choice(&mut self, depth: usize) -> Result<Expr, Failure> {
        if depth > MAX_NESTING {
            return Err(Failure::invalid(format!("groups nest deeper than {MAX_NESTING}")));
        }
        let mut items = vec![self.sequence(depth)?];
        while self.take('|') {
            items.push(self.sequence(depth)?);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Expr::Choice(items) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr, Failure> {
        let mut items = Vec::new();
        loop {
            let here = self.rest;
            if self.rule_head().is_some() {
                self.rest = here; // the next rule
                break;
            }
            let Some(item) = self.item(depth)? else { break };
            items.push(self.repeated(item)?);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Expr::Sequence(items) })
    }

    fn item(&mut self, depth: usize) -> Result<Option<Expr>, Failure> {
        let expr = match self.rest.chars().next() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('<') => self.token()?,
            Some('(') => {
                self.take('(');
                let group = self.choice(depth + 1)?;
                if !self.take(')') {
                    return Err(self.wrong("a closing )"));
                }
                group
            }
            Some('.') => {
                self.take('.');
                Expr::Class("(?s:.)".into())
            }
            None | Some('|') | Some(')') => return Ok(None),
            _ => Expr::Rule(self.name().ok_or_else(|| self.wrong("a rule's name, \"text\", [characters] or a group"))?),
        };
        self.space();
        Ok(Some(expr))
    }

    fn repeated(&mut self, item: Expr) -> Result<Expr, Failure> {
        let (low, high) = if self.take('*') {
            (0, None)
        } else if self.take('+') {
            (1, None)
        } else if self.take('?') {
            (0, Some(1))
        } else if self.take('{') {
            let low = self.number()?;
            let high = if self.take(',') { self.number()? } else { low };
            if !self.take('}') || (low.is_none() && high.is_none()) {
                return Err(self.wrong("a repetition such as {2}, {2,} or {2,5}"));
            }
            (low.unwrap_or(0), high)
        } else {
            return Ok(item);
        };
        if high.is_some_and(|high| high < low) {
            return Err(Failure::invalid(format!("the repetition {} allows nothing", repeat(low, high))));
        }
        let item = if high == Some(0) { Expr::Sequence(Vec::new()) } else { Expr::Repeat(Box::new(item), low, high) };
        self.repeated(item)
    }

    fn number(&mut self) -> Result<Option<usize>, Failure> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.space();
        match digits.parse() {
            _ if digits.is_empty() => Ok(None),
            Ok(number) if number <= MAX_REPEAT => Ok(Some(number)),
            _ => Err(Failure::invalid(format!("{digits} repetitions are too many: at most {MAX_REPEAT} are accepted"))),
        }
    }

    fn literal(&mut self) -> Result<Expr, Failure> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        loop {
            match self.rest.chars().next() {
                Some('"') => break,
                Some('\n') | None => return Err(self.wrong("the closing \" of a text")),
                _ => text.push(self.character()?),
            }
        }
        self.rest = &self.rest[1..];
        Ok(Expr::Literal(text))
    }

    fn class(&mut self) -> Result<Expr, Failure> {
        self.rest = &self.rest[1..];
        let mut class = String::from("[");
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            class.push('^');
        }
        let empty = class.len();
        loop {
            match self.rest.chars().next() {
                Some(']') => break,
                None => return Err(self.wrong("the closing ] of a character class")),
                _ => {}
            }
            let low = self.character()?;
            class.push_str(&code_point(low));
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.rest = &self.rest[1..];
                let high = self.character()?;
                if high < low {
                    return Err(Failure::invalid(format!("the range {low}-{high} is empty")));
                }
                let _ = write!(class, "-{}", code_point(high));
            }
        }
        self.rest = &self.rest[1..];
        if class.len() == empty {
            return Err(Failure::invalid("a character class is empty"));
        }
        class.push(']');
        Ok(Expr::Class(class))
    }

    fn token(&mut self) -> Result<Expr, Failure> {
        let end = self.rest.find(|c: char| c == '>' || c.is_whitespace());
        match end {
            Some(end) if self.rest[end..].starts_with('>') => {
                let (name, rest) = self.rest.split_at(end + 1);
                self.rest = rest;
                Ok(Expr::Token(name.to_string()))
            }
            _ => Err(self.wrong("a token such as <|name|> or <[id]>")),
        }
    }

    /// One character of a text or class, escapes resolved.
    fn character(&mut self) -> Result<char, Failure> {
        let mut chars = self.rest.chars();
        let first = chars.next().ok_or_else(|| self.wrong("a character"))?;
        if first != '\\' {
            self.rest = chars.as_str();
            return Ok(first);
        }
        let escape = chars.next();
        let digits = match escape {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        let value = if digits > 0 {
            let code = chars.as_str().get(..digits);
            let value = code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
            chars = chars.as_str().get(digits..).unwrap_or("").chars();
            value
        } else {
            match escape {
                Some('n') => Some('\n'),
                Some('r') => Some('\r'),
                Some('t') => Some('\t'),
                // These are xgrammar's.
                Some('a') => Some('\x07'),
                Some('b') => Some('\x08'),
                Some('f') => Some('\x0c'),
                Some('v') => Some('\x0b'),
                Some('e') => Some('\x1b'),
                Some('0') => Some('\0'),
                Some(c) if !c.is_ascii_alphanumeric() => Some(c),
                _ => None,
            }
        };
        let value = value.ok_or_else(|| self.wrong("an escape such as \\n, \\\", \\x41 or \\u0041"))?;
        self.rest = chars.as_str();
        Ok(value)
    }

    /// Reads `c` and the space after it, if it comes next.
    fn take(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                self.space();
                true
            }
            None => false,
        }
    }

    fn wrong(&self, expected: &str) -> Failure {
        let line = self.text[..self.text.len() - self.rest.len()].matches('\n').count() + 1;
        let here: String = self.rest.chars().take_while(|&c| c != '\n').take(20).collect();
        let here = if here.is_empty() { "the end".into() } else { format!("\"{here}\"") };
        Failure::invalid(format!("line {line} of the grammar: expected {expected}, found {here}"))
    }
}
