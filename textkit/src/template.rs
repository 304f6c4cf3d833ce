//! A compiled template: parsed by minijinja, with Python's operators in place of the engine's.

use std::collections::BTreeMap;

use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error};
use self_cell::self_cell;

use crate::abi::{caught, Cancel, Failure};
use crate::python;
use crate::render_threads::USUAL;

/// The longest templates that models come with have some 30 KiB.
const MAX_SOURCE_BYTES: usize = 1 << 18;
/// Words and signs of one tag, and branches of all. The engine reads, and frees, both by recursion, some 2 KiB of stack
/// for each; blocks within blocks it counts itself. So a compilation takes 10 MiB of stack at most.
const MAX_TAG: usize = 2_000;
const MAX_BRANCHES: usize = 2_000;

struct Source {
    name: &'static str,
    text: String,
}

struct Compiled<'source> {
    main: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

self_cell!(
    struct Code {
        owner: Source,
        #[covariant]
        dependent: Compiled,
    }
);

pub struct Template(Code);

impl Template {
    /// The text after "the chat template" in an error about the source.
    pub fn new(name: &'static str, source: &str) -> Result<Template, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            let size = source.len();
            return Err(Failure::data_loss(format!("has {size} bytes, more than {MAX_SOURCE_BYTES}")));
        }
        let work = || match caught(|| Template::compile(name, source), Failure::internal) {
            Ok(outcome) => (outcome, true),
            Err(failure) => (Err(failure), false),
        };
        USUAL.run(Cancel::NEVER, work)? // their stack is large
    }

    fn compile(name: &'static str, source: &str) -> Result<Template, Failure> {
        let text = read(source).map_err(Failure::data_loss)?;
        let compiled = Code::try_new(Source { name, text }, |source| {
            let ast = machinery::parse(&source.text, source.name, syntax())
                .map_err(|error| format!("does not compile: {error}"))?;
            let mut generator = CodeGenerator::new(source.name, &source.text);
            generator.compile_stmt(&ast);
            let (main, blocks) = generator.finish();
            let blocks = blocks.into_iter().map(|(name, block)| Ok((name, with_python(&block)?)));
            Ok(Compiled { main: with_python(&main)?, blocks: blocks.collect::<Result<_, String>>()? })
        });
        compiled.map(Template).map_err(|why: String| Failure::data_loss(why))
    }

    pub fn render(&self, environment: &Environment<'static>, context: Value, out: &mut String) -> Result<(), Error> {
        self.0.with_dependent(|_, code| {
            let mut out = machinery::make_string_output(out);
            machinery::eval(environment, &code.main, context, &code.blocks, &mut out, AutoEscape::None).map(drop)
        })
    }
}

fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default()
}

/// The source as Jinja2 reads it: line ends are "\n". `generation` marks assistant text for
/// training; it becomes a block that the engine knows and that has a scope of its own, too. Refuses
/// sources that nest too deeply for the engine's recursion.
fn read(source: &str) -> Result<String, String> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut text = String::with_capacity(source.len());
    let mut copied = 0;
    let (mut in_tag, mut branches) = (0, 0);
    // Errors are the parser's to report.
    for (token, span) in machinery::tokenize(&source, false, syntax()).map_while(Result::ok) {
        in_tag += 1;
        match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => in_tag = 0,
            Token::Ident("elif") if in_tag == 1 => branches += 1,
            Token::Ident(word @ ("generation" | "endgeneration")) if in_tag == 1 => {
                text.push_str(&source[copied..span.start_offset as usize]);
                text.push_str(if word == "generation" { "with" } else { "endwith" });
                copied = span.end_offset as usize;
            }
            _ => {}
        }
        if in_tag > MAX_TAG {
            return Err(format!("has a tag of more than {MAX_TAG} words and signs"));
        }
        if branches > MAX_BRANCHES {
            return Err(format!("has more than {MAX_BRANCHES} branches"));
        }
    }
    text.push_str(&source[copied..]);
    Ok(text)
}

/// The same code with the filters of `python` where the engine has operators of its own, and with a
/// check of the values that loops iterate over. Refuses code that could only fail later.
fn with_python<'source>(code: &Instructions<'source>) -> Result<Instructions<'source>, String> {
    let all = || (0..).map_while(|at| code.get(at).map(|instruction| (at, instruction)));
    let stored =
        |name: &str| all().any(|(_, instruction)| matches!(instruction, Instruction::StoreLocal(n) if *n == name));
    let mut places = Vec::new();
    let mut next = 0;
    for (_, instruction) in all() {
        places.push(next);
        next += if matches!(instruction, Instruction::PushLoop(_)) { 2 } else { 1 };
    }
    places.push(next);
    let mut out = Instructions::new(code.name(), code.source());
    for (at, instruction) in all() {
        let mut instruction = instruction.clone();
        match &mut instruction {
            Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target)
            | Instruction::Iterate(target) => *target = places[*target as usize],
            Instruction::BuildMacro(name, start, _) => {
                check_defaults(code, name, *start)?;
                *start = places[*start as usize];
            }
            Instruction::ApplyFilter(name, ..) if python::MISSING_FILTERS.contains(name) => {
                return Err(format!("uses the filter {name}, which is not supported"));
            }
            Instruction::Lookup(name @ ("varargs" | "kwargs")) if !stored(name) => {
                return Err(format!("uses {name} of a macro, which is not supported: name the arguments"));
            }
            Instruction::GetAttr(name) if name.starts_with("__") => {
                return Err(format!("uses the attribute {name}, which templates may not"));
            }
            _ => {}
        }
        if let Some((filter, operands)) = python::operator(&instruction) {
            instruction = Instruction::ApplyFilter(filter, Some(operands), !0);
        }
        let mut add = |instruction| match (code.get_span(at), code.get_line(at)) {
            (Some(span), _) => out.add_with_span(instruction, span),
            (None, line) => out.add_with_line(instruction, line.unwrap_or(0) as u16),
        };
        if matches!(instruction, Instruction::PushLoop(_)) {
            add(Instruction::ApplyFilter(python::ITERABLE, Some(1), !0));
        }
        add(instruction);
    }
    Ok(out)
}

/// The engine computes the defaults of a macro before its arguments have their names.
fn check_defaults(code: &Instructions<'_>, name: &str, start: u32) -> Result<(), String> {
    let (mut arguments, mut looked_up) = (Vec::new(), Vec::new());
    let mut at = start;
    loop {
        if let (Some(Instruction::DupTop), Some(Instruction::JumpIfFalse(end))) = (code.get(at), code.get(at + 2)) {
            looked_up.extend((at..*end).filter_map(|at| match code.get(at) {
                Some(Instruction::Lookup(name)) => Some(*name),
                _ => None,
            }));
            at = *end;
        }
        let Some(Instruction::StoreLocal(argument)) = code.get(at) else { break };
        arguments.push(*argument);
        at += 1;
    }
    match looked_up.into_iter().find(|name| arguments.contains(name)) {
        Some(argument) => {
            Err(format!("has a macro {name} with a default that names its argument {argument}: set it inside"))
        }
        None => Ok(()),
    }
}
