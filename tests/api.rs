//! The public API, as text: a change of it is a change of `tests/snapshots/api.txt`, to be seen in review.
//!
//! `WINDDOWN_UPDATE_SNAPSHOTS=1 cargo test --test api` writes it anew.

#[path = "source/strip.rs"]
mod strip;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs};

use strip::{closing, is_word, strip};

const SNAPSHOT: &str = "tests/snapshots/api.txt";

#[test]
fn the_public_api_is_as_in_the_snapshot() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let api = api(&read);
    if env::var_os("WINDDOWN_UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        fs::write(root.join(SNAPSHOT), &api).expect("the snapshot can be written");
        return;
    }
    let snapshot = read(SNAPSHOT).unwrap_or_default();
    let (now, then): (BTreeSet<&str>, BTreeSet<&str>) = (api.lines().collect(), snapshot.lines().collect());
    let gone = then.difference(&now).map(|line| format!("- {line}\n"));
    let new = now.difference(&then).map(|line| format!("+ {line}\n"));
    let changes: String = gone.chain(new).collect();
    assert!(
        api == snapshot,
        "the public API has changed:\n{changes}\nif that is meant: WINDDOWN_UPDATE_SNAPSHOTS=1 cargo test --test api"
    );
}

#[test]
fn what_users_can_name_is_listed_and_nothing_else() {
    let files = BTreeMap::from([
        (
            "src/lib.rs",
            "mod gate;\npub use crate::gate::{Gate, Why as Reason};\npub mod pool;\n#[cfg(feature = \"http\")]\npub mod server;",
        ),
        (
            "src/gate.rs",
            "/// Doc with pub fn not_me().\n#[derive(Debug, Clone)]\npub struct Gate<T: Send>(Vec<T>, pub usize);\n\
             pub struct Unnamed;\npub enum Why {\n    /// One.\n    One,\n    Two { a: u8, b: Vec<u8> },\n    Three(u8, u8),\n}\n\
             impl<T: Send> Gate<T> {\n    pub const MAX: usize = 1 << 3;\n    pub fn enter(\n        &self,\n        at: [u8; 3],\n    ) \
             -> Option<T>\n    where\n        T: Sync,\n    {\n        pub fn hidden() {}\n    }\n    pub(crate) fn no(&self) {}\n    \
             #[doc(hidden)]\n    pub fn nor(&self) {}\n    fn own(&self) {}\n}\nimpl<T: Send> Drop for Gate<T> {\n    fn drop(&mut self) {}\n}\n\
             #[cfg(test)]\nmod tests { impl super::Gate<u8> { pub fn test() {} } }\nimpl Private for Unnamed {}\n\
             #[cfg(feature = \"json\")]\nimpl<T: Send> Gate<T> {\n    pub fn json(&self) {}\n}",
        ),
        (
            "src/pool.rs",
            "pin_project! {\n    #[non_exhaustive]\n    pub struct Pool<F> { #[pin] f: F, pub size: usize }\n}\n\
             pub trait Close: Send {\n    type Error;\n    const N: u8 = 1;\n    fn close(&self) -> impl Future<Output = ()> + Send;\n    \
             fn name(&self) -> &str { \"fn x()\" }\n}\npub use tokio::time::sleep;\nmod sqlx;\npub use self::sqlx::*;",
        ),
        ("src/pool/sqlx.rs", "#[cfg(unix)]\npub async fn close<T>(t: T) {}\npub type Id = u8;\nstruct Own;"),
        ("src/server.rs", "pub mod axum { pub fn serve() {} }\npub(crate) fn no() {}"),
    ]);
    let api = api(&|path| files.get(path).map(|text| text.to_string()));
    let expected = "\
winddown::Gate | impl<T: Send> Drop for Gate<T>
winddown::Gate | struct Gate<T: Send>(_, pub usize) | derive(Clone, Debug)
winddown::Gate::MAX | const MAX: usize
winddown::Gate::enter | fn enter(&self, at: [u8; 3]) -> Option<T> where T: Sync
winddown::Gate::json | fn json(&self) | feature = \"json\"
winddown::Reason | enum Why
winddown::Reason::One | One
winddown::Reason::Three | Three(u8, u8)
winddown::Reason::Two | Two { a: u8, b: Vec<u8> }
winddown::pool | mod
winddown::pool::Close | trait Close: Send
winddown::pool::Close::Error | type Error
winddown::pool::Close::N | const N: u8
winddown::pool::Close::close | fn close(&self) -> impl Future<Output = ()> + Send
winddown::pool::Close::name | fn name(&self) -> &str | provided
winddown::pool::Id | type Id = u8
winddown::pool::Pool | struct Pool<F> | non_exhaustive
winddown::pool::Pool::size | size: usize
winddown::pool::close | async fn close<T>(t: T) | cfg(unix)
winddown::pool::sleep | use tokio::time::sleep
winddown::server | mod | feature = \"http\"
winddown::server::axum | mod
winddown::server::axum::serve | fn serve()
";
    assert!(api == expected, "{api}");
}

/// One file or inline module, read.
#[derive(Default)]
struct Module {
    items: Vec<Item>,
    impls: Vec<Impl>,
    modules: BTreeMap<String, (Module, Item)>,
    uses: Vec<(Vec<String>, Item)>,
}

/// Something with a name; what is inside it follows as members.
#[derive(Clone, Default)]
struct Item {
    name: String,
    signature: String,
    public: bool,
    /// What it depends on, and what of its attributes users feel.
    notes: Vec<String>,
    gates: Vec<String>,
    members: Vec<Item>,
}

struct Impl {
    target: String,
    /// Of a trait: the head is a line of its own.
    head: Option<Item>,
    members: Vec<Item>,
}

/// Every public name with its signature, one a line, sorted.
fn api(read: &dyn Fn(&str) -> Option<String>) -> String {
    let source = read("src/lib.rs").expect("there is a src/lib.rs");
    let root = Parser::new(&source).module("src", read);
    let mut lines = BTreeSet::new();
    list(&root, &root, &[], "winddown", &[], &mut lines);
    lines.into_iter().map(|line| line + "\n").collect()
}

/// What a name depends on stands at the name, and is not said again of what is inside it.
fn list(
    root: &Module,
    module: &Module,
    at: &[String],
    path: &str,
    gates: &[String],
    lines: &mut BTreeSet<String>,
) {
    for item in module.items.iter().filter(|item| item.public) {
        list_item(root, at, item, &format!("{path}::{}", item.name), gates, lines);
    }
    for (name, (inner, item)) in module.modules.iter().filter(|(_, (_, item))| item.public) {
        let path = format!("{path}::{name}");
        add(lines, &path, "mod", &[gates, &item.gates].concat());
        list(root, inner, &[at, std::slice::from_ref(name)].concat(), &path, &[], lines);
    }
    for (target, item) in module.uses.iter().filter(|(_, item)| item.public) {
        let gates = [gates, &item.gates].concat();
        let named = format!("{path}::{}", item.name);
        let Some((from, name)) = resolve(root, at, target) else {
            add(lines, &named, &format!("use {}", target.join("::")), &gates);
            continue;
        };
        let found = find(root, &from);
        if name == "*" {
            list(root, found, &from, path, &gates, lines);
        } else if let Some(item) = found.items.iter().find(|found| found.name == name) {
            list_item(root, &from, item, &named, &gates, lines);
        } else if let Some((inner, _)) = found.modules.get(&name) {
            add(lines, &named, "mod", &gates);
            list(root, inner, &[from, vec![name]].concat(), &named, &[], lines);
        } else if let Some((again, _)) = found.uses.iter().find(|(_, found)| found.name == name) {
            // Named there by another `use`: followed one step further.
            let step = Module { uses: vec![(again.clone(), item.clone())], ..Module::default() };
            list(root, &step, &from, path, &[], lines);
        }
    }
}

fn list_item(
    root: &Module,
    at: &[String],
    item: &Item,
    path: &str,
    gates: &[String],
    lines: &mut BTreeSet<String>,
) {
    add(lines, path, &item.signature, &[&item.notes, gates, &item.gates].concat());
    let mut members: Vec<&Item> = item.members.iter().collect();
    for found in impls_below(root, at.first()).into_iter().filter(|found| found.target == item.name) {
        members.extend(&found.members);
        if let Some(head) = &found.head {
            add(lines, path, &head.signature, &head.gates);
        }
    }
    for member in members.into_iter().filter(|member| member.public) {
        let notes = [&*member.notes, &member.gates].concat();
        add(lines, &format!("{path}::{}", member.name), &member.signature, &notes);
    }
}

fn add(lines: &mut BTreeSet<String>, path: &str, signature: &str, notes: &[String]) {
    lines.insert([&[path.to_owned(), signature.to_owned()], notes].concat().join(" | "));
}

/// The impls in a top module and all below it: those of one type may lie in several files of its module.
fn impls_below<'a>(root: &'a Module, top: Option<&String>) -> Vec<&'a Impl> {
    let mut found: Vec<&Impl> = root.impls.iter().collect();
    let mut open: Vec<&Module> = match top {
        Some(top) => root.modules.get(top).map(|(module, _)| module).into_iter().collect(),
        None => Vec::new(),
    };
    while let Some(module) = open.pop() {
        found.extend(&module.impls);
        open.extend(module.modules.values().map(|(module, _)| module));
    }
    found
}

fn find<'a>(root: &'a Module, path: &[String]) -> &'a Module {
    path.iter().fold(root, |module, name| &module.modules[name].0)
}

/// The module that a path leads to and the name in it; none where it leads out of the crate.
fn resolve(root: &Module, at: &[String], path: &[String]) -> Option<(Vec<String>, String)> {
    let (name, steps) = path.split_last()?;
    let mut place = at.to_vec();
    for (n, step) in steps.iter().enumerate() {
        match step.as_str() {
            "crate" => place.clear(),
            "self" => {}
            "super" => drop(place.pop()),
            _ if find(root, &place).modules.contains_key(step) => place.push(step.clone()),
            _ if n == 0 && root.modules.contains_key(step) => place = vec![step.clone()],
            _ => return None,
        }
    }
    Some((place, name.clone()))
}

/// Walks over a source, with strings and comments blank in `text`.
struct Parser<'a> {
    source: &'a str,
    text: String,
    at: usize,
}

// === impl Parser ===

impl<'a> Parser<'a> {
    fn new(source: &'a str) -> Self {
        Parser { source, text: strip(source), at: 0 }
    }

    fn module(&mut self, folder: &str, read: &dyn Fn(&str) -> Option<String>) -> Module {
        let end = self.text.len();
        self.items(end, folder, read)
    }

    fn items(&mut self, end: usize, folder: &str, read: &dyn Fn(&str) -> Option<String>) -> Module {
        let mut module = Module::default();
        while let Some((item, kind)) = self.head(end) {
            let hidden = item.notes.iter().any(|note| note == "hidden");
            let (start, body) = (self.at, self.body(end));
            self.at = if self.text[body..].starts_with('{') { closing(&self.text, body) } else { body + 1 };
            let signature = self.plain(start, body);
            let inside = (body + 1, self.at - 1);
            if hidden {
                continue;
            }
            match kind.as_str() {
                "mod" => {
                    let name = signature.trim_start_matches("mod ").trim().to_owned();
                    let folder = format!("{folder}/{name}");
                    let inner = if self.text[body..].starts_with('{') {
                        self.within(inside, |parser| parser.items(inside.1, &folder, read))
                    } else {
                        let source = read(&format!("{folder}.rs")).unwrap_or_default();
                        Parser::new(&source).module(&folder, read)
                    };
                    module.modules.insert(name, (inner, item));
                }
                "use" => {
                    let tree = self.plain(start, self.at - 1);
                    spread(tree.trim_start_matches("use "), &[], &item, &mut module.uses);
                }
                "pin_project" => {
                    let inner = self.within(inside, |parser| parser.items(inside.1, folder, read));
                    module.items.extend(inner.items);
                    module.impls.extend(inner.impls);
                }
                "impl" => {
                    let (of_trait, target) = target(&signature);
                    let mut members = self.within(inside, |parser| parser.members(inside.1, of_trait));
                    members.iter_mut().for_each(|member| member.gates.extend_from_slice(&item.gates));
                    let head = of_trait.then_some(Item { signature, ..item });
                    module.impls.push(Impl {
                        target,
                        head,
                        members: if of_trait { Vec::new() } else { members },
                    });
                }
                _ => module.items.push(self.item(item, &kind, signature, inside)),
            }
        }
        module
    }

    /// A type, trait, function or constant.
    fn item(&mut self, mut item: Item, kind: &str, signature: String, inside: (usize, usize)) -> Item {
        item.name = name_after(&signature, kind);
        let signature = without_value(signature, kind);
        item.members = match kind {
            "enum" => self.within(inside, |parser| parser.fields(inside.1, true)),
            "struct" => self.within(inside, |parser| parser.fields(inside.1, false)),
            "trait" => self.within(inside, |parser| parser.members(inside.1, true)),
            _ => Vec::new(),
        };
        item.signature = if kind == "struct" { shown_fields(&signature) } else { signature };
        item
    }

    /// The functions, types and constants of an impl or a trait.
    fn members(&mut self, end: usize, of_trait: bool) -> Vec<Item> {
        let mut members = Vec::new();
        while let Some((mut item, kind)) = self.head(end) {
            let (start, body) = (self.at, self.body(end));
            let provided = self.text[body..].starts_with('{');
            self.at = if provided { closing(&self.text, body) } else { body + 1 };
            item.signature = without_value(self.plain(start, body), &kind);
            item.name = name_after(&item.signature, &kind);
            item.public |= of_trait;
            if of_trait && provided {
                item.notes.push("provided".to_owned());
            }
            if !item.notes.iter().any(|note| note == "hidden") {
                members.push(item);
            }
        }
        members
    }

    /// The variants of an enum, or the named fields of a struct.
    fn fields(&mut self, end: usize, all: bool) -> Vec<Item> {
        let mut fields = Vec::new();
        while let Some((mut item, _)) = self.head(end) {
            let start = self.at;
            while self.at < end && self.text.as_bytes()[self.at] != b',' {
                self.at = self.past(self.at);
            }
            item.signature = self.plain(start, self.at.min(end));
            item.name = name_after(&item.signature, "");
            item.public |= all;
            self.at += 1;
            if !item.notes.iter().any(|note| note == "hidden") {
                fields.push(item);
            }
        }
        fields
    }

    /// Attributes and visibility of what comes next, and its kind; stands before its signature then.
    fn head(&mut self, end: usize) -> Option<(Item, String)> {
        let mut item = Item::default();
        let mut derived = BTreeSet::new();
        loop {
            self.space();
            if self.at >= end {
                return None;
            }
            let rest = &self.text[self.at..];
            if rest.starts_with('#') {
                let open = self.at + rest.find('[').unwrap_or(1);
                let close = closing(&self.text, open);
                let attribute = normal(&self.source[open + 1..close - 1]);
                if let Some(inside) = attribute.strip_prefix("derive(") {
                    derived
                        .extend(inside.trim_end_matches(')').split(',').map(|name| name.trim().to_owned()));
                } else if attribute == "non_exhaustive" {
                    item.notes.push(attribute);
                } else if attribute == "doc(hidden)"
                    || attribute.starts_with("cfg(test")
                    || attribute.starts_with("cfg(all(test")
                {
                    item.notes.push("hidden".to_owned());
                } else if let Some(feature) = attribute.strip_prefix("cfg(feature") {
                    item.gates.push(format!("feature{}", feature.trim_end_matches(')')));
                } else if attribute.starts_with("cfg(") {
                    item.gates.push(attribute);
                }
                self.at = close;
            } else if rest.starts_with("pub(") {
                self.at = closing(&self.text, self.at + 3);
            } else if rest.starts_with("pub ") {
                item.public = true;
                self.at += 4;
            } else {
                break;
            }
        }
        if !derived.is_empty() {
            let names: Vec<String> = derived.into_iter().filter(|name| !name.is_empty()).collect();
            item.notes.insert(0, format!("derive({})", names.join(", ")));
        }
        let kinds = [
            "fn",
            "struct",
            "enum",
            "union",
            "trait",
            "type",
            "mod",
            "use",
            "impl",
            "static",
            "macro_rules",
            "pin_project",
        ];
        let words = self.text[self.at..end]
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty());
        let mut kind = words.clone().take(4).find(|word| kinds.contains(word)).unwrap_or("const").to_owned();
        if words.clone().next() == Some("const")
            && words.clone().nth(1).is_some_and(|word| !["fn", "unsafe", "async"].contains(&word))
        {
            kind = "const".to_owned();
        }
        Some((item, kind))
    }

    /// Where the signature ends: before its `{` or `;`.
    fn body(&self, end: usize) -> usize {
        let mut at = self.at;
        let is_use = self.text[at..].starts_with("use ");
        while at < end {
            match self.text.as_bytes()[at] {
                b'{' if !is_use => return at,
                b';' => return at,
                _ => at = self.past(at),
            }
        }
        end.saturating_sub(1)
    }

    /// The next place, over brackets as a whole.
    fn past(&self, at: usize) -> usize {
        match self.text.as_bytes()[at] {
            b'(' | b'[' | b'{' => closing(&self.text, at),
            _ => at + 1,
        }
    }

    fn within<T>(&mut self, (start, _): (usize, usize), read: impl FnOnce(&mut Self) -> T) -> T {
        let after = std::mem::replace(&mut self.at, start);
        let read = read(self);
        self.at = after;
        read
    }

    fn space(&mut self) {
        while self.text[self.at..].starts_with(|c: char| c.is_whitespace()) {
            self.at += 1;
        }
    }

    /// A signature on one line.
    fn plain(&self, start: usize, end: usize) -> String {
        normal(&self.text[start..end])
    }
}

/// One space where there was any, none inside brackets, no comma before a closing one.
fn normal(text: &str) -> String {
    let mut out = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (from, to) in [
        ("(mut self", "(self"),
        ("( ", "("),
        (", )", ")"),
        (" )", ")"),
        (", >", ">"),
        (", }", " }"),
        (" ;", ";"),
        (" .", "."),
    ] {
        out = out.replace(from, to);
    }
    out.trim_end_matches(',').to_owned()
}

fn name_after(signature: &str, kind: &str) -> String {
    let words =
        || signature.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    let after =
        words().skip_while(|word| !kind.is_empty() && *word != kind).nth(usize::from(!kind.is_empty()));
    after.or_else(|| words().next()).unwrap_or_default().to_owned()
}

/// A constant is its name and type.
fn without_value(signature: String, kind: &str) -> String {
    match signature.split_once(" = ") {
        Some((named, _)) if matches!(kind, "const" | "static") => named.to_owned(),
        _ => signature,
    }
}

/// A tuple's fields that are not public are users' business by their number only.
fn shown_fields(signature: &str) -> String {
    let Some(open) = signature.find('(').filter(|open| !signature[..*open].contains("where")) else {
        return signature.to_owned();
    };
    let close = closing(signature, open);
    let mut fields = vec![String::new()];
    let mut depth = 0;
    for char in signature[open + 1..close - 1].chars() {
        depth += i32::from("([{<".contains(char)) - i32::from(")]}>".contains(char));
        if char == ',' && depth == 0 {
            fields.push(String::new());
        } else if let Some(last) = fields.last_mut() {
            last.push(char);
        }
    }
    let shown = |field: &String| {
        if field.trim().starts_with("pub ") { field.trim().to_owned() } else { "_".to_owned() }
    };
    format!(
        "{}({}){}",
        &signature[..open],
        fields.iter().map(shown).collect::<Vec<_>>().join(", "),
        &signature[close..]
    )
}

/// Whether an impl is a trait's, and the name of the type that it is for.
fn target(head: &str) -> (bool, String) {
    let mut rest = head.trim_start_matches("unsafe ").trim_start_matches("impl");
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|(at, char)| {
            depth += i32::from(*char == '<') - i32::from(*char == '>' && !rest[..*at].ends_with('-'));
            depth == 0
        });
        rest = &rest[end.map_or(0, |(at, _)| at + 1)..];
    }
    let (of_trait, of) = match rest.split_once(" for ") {
        // `for<'a>` is no target.
        Some((_, of)) => (true, of),
        None => (false, rest),
    };
    let path = of.trim().trim_start_matches('&').split(['<', ' ', '{']).next().unwrap_or_default();
    (of_trait, path.rsplit("::").next().unwrap_or_default().to_owned())
}

/// Each name of a `use`, with its path.
fn spread(tree: &str, before: &[String], item: &Item, uses: &mut Vec<(Vec<String>, Item)>) {
    let tree = tree.trim();
    if let Some((path, inside)) = tree.split_once('{') {
        let steps = path.split("::").map(str::trim).filter(|step| !step.is_empty()).map(str::to_owned);
        let before: Vec<String> = before.iter().cloned().chain(steps).collect();
        let (mut depth, mut start) = (0, 0);
        let inside = inside.trim_end().trim_end_matches('}');
        for (at, char) in inside.char_indices().chain([(inside.len(), ',')]) {
            depth += i32::from(char == '{') - i32::from(char == '}');
            if char == ',' && (depth == 0 || at == inside.len()) {
                spread(&inside[start..at], &before, item, uses);
                start = (at + 1).min(inside.len());
            }
        }
    } else if !tree.is_empty() {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
        let mut path: Vec<String> =
            before.iter().cloned().chain(path.split("::").map(|step| step.trim().to_owned())).collect();
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name =
            alias.map_or_else(|| path.last().cloned().unwrap_or_default(), |alias| alias.trim().to_owned());
        debug_assert!(name == "*" || name.bytes().all(is_word), "{name}");
        uses.push((path, Item { name, ..item.clone() }));
    }
}
