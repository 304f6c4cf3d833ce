//! Patterns of a schema, which are ECMAScript's, as regular expressions of the engine. Where ECMAScript and Python read a
//! pattern differently, a text that it allows is one that both allow.
//!
//! The engine quotes a class wrongly that holds all control characters but not `\` or `"`: it lets both through as
//! escapes. No class here holds U+0000, so there is no such class.

use std::iter::Peekable;
use std::str::Chars;

use regex_syntax::hir::{Class, Hir, HirKind};

/// What a pattern can match of "." and of no character.
const DOT: &str = r"[^\x00\n\r\x{2028}\x{2029}]";
const NEVER: &str = r"[\x00--\x00]";
/// `\d`, `\w` and `\s` as ECMAScript and Python read them alike, and as either of them does.
const DIGIT: [&str; 2] = ["0-9", r"\p{Nd}"];
const WORD: [&str; 2] = ["0-9A-Za-z_", r"\p{L}\p{N}_"];
const SPACE: [&str; 2] = [
    r"\x09-\x0d\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}",
    r"\x09-\x0d\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}",
];

/// The engine's expression, which it searches for; an error says what cannot be enforced.
pub fn translate(pattern: &str) -> Result<String, String> {
    let mut reader = Reader { rest: pattern.chars().peekable(), out: String::new() };
    reader.pattern()?;
    Ok(reader.out)
}

/// Whether some text of the expression can stand in a JSON string without `\u`.
pub fn is_plain(expression: &str) -> bool {
    regex_syntax::parse(expression).is_ok_and(|regex| has_plain_text(&regex))
}

/// Whether a JSON string can hold the character as itself or as an escape of two characters.
pub fn is_plain_char(c: char) -> bool {
    matches!(c, '\x08' | '\t' | '\n' | '\x0c' | '\r') || !c.is_ascii_control()
}

fn has_plain_text(regex: &Hir) -> bool {
    match regex.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(text) => text.0.iter().all(|&byte| is_plain_char(byte as char)),
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).take(0x81).any(is_plain_char))
        }
        HirKind::Class(Class::Bytes(_)) => true,
        HirKind::Repetition(repeat) => repeat.min == 0 || has_plain_text(&repeat.sub),
        HirKind::Capture(group) => has_plain_text(&group.sub),
        HirKind::Concat(items) => items.iter().all(has_plain_text),
        HirKind::Alternation(items) => items.iter().any(has_plain_text),
    }
}

enum Atom {
    Char(char),
    Set(String),
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
}

impl Reader<'_> {
    fn pattern(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.next() {
            match c {
                '.' => self.out.push_str(DOT),
                '[' => self.class()?,
                '(' => self.group(),
                '\\' => match self.rest.peek() {
                    Some('b' | 'B') => return Err(r"\b and \B are not supported".into()),
                    _ => match self.escape(false)? {
                        Atom::Char(c) => self.character(c),
                        Atom::Set(set) => self.set(&format!("[{set}]")),
                    },
                },
                '^' | '$' | ')' | '*' | '+' | '?' | '{' | '}' | '|' => self.out.push(c),
                _ => self.character(c),
            }
        }
        Ok(())
    }

    /// A group's name means nothing here, and one name means something else to the engine.
    fn group(&mut self) {
        self.out.push('(');
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('?') {
            return;
        }
        if ahead.peek() == Some(&'P') {
            ahead.next();
        }
        let is_named = ahead.next() == Some('<') && !matches!(ahead.peek(), Some('=' | '!'));
        if is_named && ahead.any(|c| c == '>') {
            self.rest = ahead;
        }
    }

    /// Without U+0000.
    fn set(&mut self, class: &str) {
        self.out.push_str(&format!(r"[{class}--\x00]"));
    }

    fn character(&mut self, c: char) {
        match c {
            '\0' => self.out.push_str(NEVER),
            _ => self.out.push_str(&regex_syntax::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }

    /// Parses the part after a `[`.
    fn class(&mut self) -> Result<(), String> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut items = String::from(if negated { "^" } else { "" });
        let mut letters = String::new(); // of the sets among the items
        loop {
            let low = match self.atom(negated, &mut letters)? {
                Some(atom) => atom,
                None => break,
            };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && !matches!(ahead.peek(), None | Some(']'));
            match low {
                Atom::Char(low) if is_range => {
                    self.rest.next();
                    match self.atom(negated, &mut letters)? {
                        Some(Atom::Char(high)) => items.push_str(&format!("{}-{}", code(low), code(high))),
                        Some(Atom::Set(high)) => items.push_str(&format!("{}{}{high}", code(low), code('-'))),
                        None => return Err("a character class is not closed".into()),
                    }
                }
                Atom::Char(c) => items.push_str(&code(c)),
                Atom::Set(set) => items.push_str(&set),
            }
        }
        if items.len() == usize::from(negated) {
            return Err("an empty character class is not supported".into());
        }
        // Together they are everything: an idiom for that.
        let whole = ['d', 'w', 's'].iter().any(|&c| letters.contains(c) && letters.contains(c.to_ascii_uppercase()));
        match (whole, negated) {
            (true, true) => self.out.push_str(NEVER),
            (true, false) => self.out.push_str(r"[^\x00]"),
            _ => self.set(&format!("[{items}]")),
        }
        Ok(())
    }

    fn atom(&mut self, negated: bool, letters: &mut String) -> Result<Option<Atom>, String> {
        match self.rest.next() {
            None => Err("a character class is not closed".into()),
            Some(']') => Ok(None),
            Some('\\') => {
                if self.rest.next_if_eq(&'b').is_some() {
                    return Ok(Some(Atom::Char('\x08')));
                }
                letters.extend(self.rest.peek());
                self.escape(negated).map(Some)
            }
            Some(c) => Ok(Some(Atom::Char(c))),
        }
    }

    /// Parses the part after a `\`. In a `negated` class a set holds the excluded characters.
    fn escape(&mut self, negated: bool) -> Result<Atom, String> {
        let letter = self.rest.next().ok_or("a pattern ends with \\")?;
        let set = |[narrow, wide]: [&str; 2]| {
            let complement = letter.is_ascii_uppercase();
            let is_wide = complement != negated;
            let set = if is_wide { wide } else { narrow };
            Atom::Set(if complement { format!("[^{set}]") } else { set.to_string() })
        };
        Ok(match letter {
            'd' | 'D' => set(DIGIT),
            'w' | 'W' => set(WORD),
            's' | 'S' => set(SPACE),
            'p' | 'P' => return self.property(letter).map(Atom::Set),
            't' => Atom::Char('\t'),
            'n' => Atom::Char('\n'),
            'r' => Atom::Char('\r'),
            'f' => Atom::Char('\x0c'),
            'v' => Atom::Char('\x0b'),
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => Atom::Char('\0'),
            'x' => Atom::Char(self.scalar(2)?),
            'u' if self.rest.next_if_eq(&'{').is_some() => {
                let digits: String = std::iter::from_fn(|| self.rest.next_if(|&c| c != '}')).take(9).collect();
                let value = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                let closed = self.rest.next() == Some('}');
                Atom::Char(value.filter(|_| closed).ok_or_else(|| format!("\\u{{{digits}}} is no character"))?)
            }
            'u' => Atom::Char(self.scalar(4)?),
            'c' => match self.rest.next() {
                Some(c) if c.is_ascii_alphabetic() => Atom::Char((c as u8 & 31) as char),
                _ => return Err("\\c must be followed by a letter".into()),
            },
            '0'..='9' | 'k' => return Err("backreferences are not supported".into()),
            c if c.is_ascii_alphanumeric() => return Err(format!("the escape \\{c} is not supported")),
            c => Atom::Char(c),
        })
    }

    fn property(&mut self, letter: char) -> Result<String, String> {
        let name: String = match self.rest.next() {
            Some('{') => std::iter::from_fn(|| self.rest.next_if(|&c| c != '}')).take(64).collect(),
            Some(c) => return Ok(format!("\\{letter}{c}")),
            None => return Err("a pattern ends with \\p".into()),
        };
        self.rest.next();
        Ok(format!("\\{letter}{{{name}}}"))
    }

    /// A character by the digits of its code; two surrogates are one.
    fn scalar(&mut self, digits: usize) -> Result<char, String> {
        let high = self.digits(digits)?;
        if !(0xD800..0xDC00).contains(&high) || digits != 4 {
            return char::from_u32(high).ok_or_else(|| format!("\\u{high:04x} is no character"));
        }
        let mut ahead = self.rest.clone();
        let follows = ahead.next() == Some('\\') && ahead.next() == Some('u');
        let low = if follows {
            self.rest = ahead;
            self.digits(4)?
        } else {
            0
        };
        let pair = [high as u16, low as u16];
        let mut scalars = char::decode_utf16(pair);
        match (scalars.next(), scalars.next()) {
            (Some(Ok(c)), None) => Ok(c),
            _ => Err(format!("\\u{high:04x} is no character")),
        }
    }

    fn digits(&mut self, count: usize) -> Result<u32, String> {
        let digits: String = self.rest.by_ref().take(count).collect();
        let is_hex = digits.len() == count && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = u32::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
        value.ok_or_else(|| format!("\"{digits}\" is no code of {count} hexadecimal digits"))
    }
}

fn code(c: char) -> String {
    format!("\\x{{{:x}}}", c as u32)
}
