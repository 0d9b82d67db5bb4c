//! The shape of the sources: a file uses what lies below it, never beside or above.

#[path = "source/strip.rs"]
mod strip;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use strip::{closing, is_word, strip};

/// Every file in `src`, by floor; the files of a module's folder belong to the module.
const FLOORS: [&[&str]; 6] = [
    &["error", "phase", "outcome", "overrun", "backoff", "latch", "trigger"],
    &["gate", "readiness", "budget", "escalation", "catch", "watchdog"],
    &["hook", "intake", "report"],
    &["handle"],
    &["coordinator"],
    &["signal", "platform", "background", "server", "queue", "pool", "process", "observe", "testing"],
];

/// May use everything: the harness plays what lies above it, too.
const USES_ALL: &str = "testing";

/// How the name of a file starts that is compiled for tests only: what it uses is no use of the product's.
const TESTS_ONLY: &str = "tests";

/// Names that say nothing.
const EMPTY_NAMES: [&str; 8] = ["utils", "util", "common", "inner", "types", "manager", "helpers", "misc"];

const MAX_LINES: usize = 400;

/// Files that are longer, each with the reason.
const LONGER: [(&str, &str); 2] = [
    ("src/gate.rs", "all of the `unsafe`, beside what it rests on"),
    ("src/testing/model/intake.rs", "one model and the one machine that drives it"),
];

/// What the crate's root exports, by name, and the module that it comes from.
type Exports = BTreeMap<String, String>;

#[test]
fn every_file_uses_only_what_lies_below_it() {
    let sources = sources();
    let root = sources.iter().find(|(path, _)| path == "src/lib.rs").expect("there is a src/lib.rs");
    let exports = exports(&root.1);
    let broken: Vec<String> =
        sources.iter().flat_map(|(path, source)| check(path, source, &exports)).collect();
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn every_longer_file_has_a_reason_and_is_there() {
    let sources = sources();
    for (path, reason) in LONGER {
        let lines =
            sources.iter().find(|(file, _)| file == path).map_or(0, |(_, source)| source.lines().count());
        assert!(lines > MAX_LINES, "{path} needs no reason any more: {reason}");
    }
}

#[test]
fn a_line_that_breaks_the_rule_is_named() {
    let exports = exports(
        "mod gate;\npub use crate::report::{Report, Stuck as Held};\npub use handle::ShutdownHandle;\n",
    );
    let broken = |path: &str, source: &str| check(path, source, &exports);
    let says = |path: &str, source: &str, line: usize, what: &str| {
        let found = broken(path, source);
        let start = format!("{path}:{line}: ");
        assert!(
            found.len() == 1 && found[0].starts_with(&start) && found[0].contains(what),
            "{source}: {found:?}"
        );
    };

    says("src/gate.rs", "\nuse crate::intake::Job;\n", 2, "`intake`, which lies above");
    says("src/gate.rs", "use crate::budget::Budget;", 1, "`budget`, which lies beside");
    says("src/gate/ages.rs", "use super::super::handle::Why;", 1, "`handle`, which lies above");
    says("src/gate.rs", "mod a {\n use super::super::handle::Why;\n}", 2, "`handle`, which lies above");
    says("src/gate.rs", "use super::coordinator::Loop;", 1, "`coordinator`, which lies above");
    says(
        "src/gate.rs",
        "use crate::{\n    phase::Phase,\n    report::{Line, Report},\n};",
        3,
        "`report`, which lies above",
    );
    says("src/gate.rs", "fn f() {\n    crate::hook::run();\n}", 2, "`hook`, which lies above");
    says("src/gate.rs", "use crate::Held;", 1, "`report`, which lies above");
    says("src/queue/sql.rs", "use crate::pool::Pool;", 1, "`pool`, which lies beside");
    says("src/gate.rs", "use crate::Nothing;", 1, "no file and no name");
    says("src/gate.rs", "use crate::*;", 1, "no file and no name");
    says("src/latch.rs", "\n\nfn f() { unsafe { g() } }", 3, "unsafe");
    says("src/signal.rs", "fn f() {\n    #[cfg(unix)]\n    g();\n}", 2, "cfg");
    says("src/signal.rs", "fn f() {\n    if cfg!(unix) {}\n}", 2, "cfg");
    says("src/elsewhere.rs", "", 1, "no floor");
    says("src/queue/mod.rs", "", 1, "mod.rs");
    says("src/queue/utils.rs", "", 1, "says nothing");
    says("src/latch.rs", &"\n".repeat(MAX_LINES + 1), MAX_LINES + 1, "longer than");
}

#[test]
fn what_keeps_the_rule_is_left_alone() {
    let exports = exports("pub use phase::Phase;");
    for (path, source) in [
        ("src/gate.rs", "use crate::phase::Phase;\nuse crate::{Phase, latch::{Latch, Wait}};"),
        ("src/gate.rs", "use crate::gate::ages::Ages; use self::ages::Age; use std::hook::x;"),
        ("src/gate/ages.rs", "use super::Gate;\nuse super::super::phase::Phase;\nuse super::names::Names;"),
        (
            "src/gate.rs",
            "// use crate::intake::Job;\nconst A: &str = \"crate::intake\"; /* crate::hook::x */",
        ),
        (
            "src/gate.rs",
            "fn f<'a>(x: &'a str) -> char { '\"' }\n#[cfg(test)]\nmod tests { use crate::intake::Job; }",
        ),
        (
            "src/gate.rs",
            "fn f() { unsafe { g() } }\n#[cfg(test)]\npub(crate) mod model { use crate::hook::H; }",
        ),
        ("src/gate/tests_loom.rs", "use crate::intake::Job; fn f() { if cfg!(miri) {} }"),
        ("src/signal.rs", "mod unix { use super::Builder; use super::super::phase::Phase; }"),
        ("src/testing/rig.rs", "use crate::coordinator::X; use crate::queue::Y;"),
        ("src/queue/sql.rs", "use crate::queue::Queue; use crate::intake::Job; use crate::coordinator::Z;"),
        (
            "src/signal.rs",
            "#[cfg(unix)]\nfn f() {\n    g();\n}\nimpl X {\n    #[cfg(unix)]\n    fn h() {}\n}",
        ),
        ("src/latch.rs", "fn f() {\n    #[cfg(winddown_loom)]\n    g();\n}\n#![deny(unsafe_code)]"),
        ("src/lib.rs", "pub use coordinator::X; pub use crate::queue::Y;"),
        (
            "src/gate.rs",
            "const R: &str = r#\"an \" unsafe crate::hook::X\"#; const B: &[u8] = br\"\\\"; const C: u8 = b'\\'';",
        ),
    ] {
        assert_eq!(check(path, source, &exports), Vec::<String>::new(), "{path}: {source}");
    }
}

/// What is wrong with a file, each with its line.
fn check(path: &str, source: &str, exports: &Exports) -> Vec<String> {
    let mut broken = Vec::new();
    let module: Vec<&str> = path.trim_start_matches("src/").trim_end_matches(".rs").split('/').collect();
    let name = module[module.len() - 1];
    if name == "mod" {
        return vec![format!("{path}:1: a folder's file lies beside it: no mod.rs")];
    }
    if EMPTY_NAMES.contains(&name) {
        broken.push(format!("{path}:1: the name `{name}` says nothing"));
    }
    let lines = source.lines().count();
    if lines > MAX_LINES && !LONGER.iter().any(|(file, _)| *file == path) {
        broken.push(format!("{path}:{lines}: longer than {MAX_LINES} lines"));
    }

    let text = without_tests(&strip(source));
    let line = |at: usize| text[..at].bytes().filter(|&byte| byte == b'\n').count() + 1;
    if module[0] != "gate" {
        for at in words(&text, "unsafe") {
            broken.push(format!("{path}:{}: unsafe outside of the gate", line(at)));
        }
    }
    let only_tests = name.starts_with(TESTS_ONLY);
    for at in cfgs_in_functions(&text, source).into_iter().filter(|_| !only_tests) {
        broken.push(format!("{path}:{}: cfg inside a function", line(at)));
    }
    if module == ["lib"] {
        return broken;
    }

    let Some(floor) = floor(module[0]) else {
        broken.push(format!("{path}:1: `{}` has no floor: name it in tests/floor.rs", module[0]));
        return broken;
    };
    let uses = if only_tests { Vec::new() } else { uses(&text, module.len()) };
    for (at, used) in uses {
        let used = exports.get(&used).unwrap_or(&used);
        if used == module[0] || module[0] == USES_ALL {
            continue;
        }
        let place = line(at);
        match self::floor(used) {
            None => broken.push(format!("{path}:{place}: `crate::{used}` is no file and no name of lib.rs")),
            Some(other) if other == floor => {
                broken.push(format!("{path}:{place}: `{}` uses `{used}`, which lies beside it", module[0]));
            }
            Some(other) if other > floor => {
                broken.push(format!("{path}:{place}: `{}` uses `{used}`, which lies above it", module[0]));
            }
            Some(_) => {}
        }
    }
    broken
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// The first name after each path to the crate's root, with its place.
fn uses(text: &str, depth: usize) -> Vec<(usize, String)> {
    let inline = inline_modules(text);
    let mut found = Vec::new();
    for (start, in_path) in [("crate", false), ("super", true)] {
        for at in words(text, start).into_iter().filter(|&at| !text[..at].ends_with("::")) {
            let inside = inline.iter().filter(|(open, close)| (*open..*close).contains(&at)).count();
            let path = if in_path { "super::".repeat(depth + inside) } else { "crate::".to_owned() };
            if text[at..].starts_with(&path) {
                first_names(text, at + path.len(), &mut found);
            }
        }
    }
    found.sort();
    found
}

/// Where the modules that are written inside the file begin and end.
fn inline_modules(text: &str) -> Vec<(usize, usize)> {
    let body = |at: usize| {
        text[at..].find(['{', ';']).map(|body| at + body).filter(|&body| text[body..].starts_with('{'))
    };
    words(text, "mod").into_iter().filter_map(body).map(|body| (body, closing(text, body))).collect()
}

fn first_names(text: &str, at: usize, found: &mut Vec<(usize, String)>) {
    if text[at..].starts_with('{') {
        for (place, part) in parts(text, at) {
            let name: String = part.bytes().take_while(|&byte| is_word(byte)).map(char::from).collect();
            found.push((place, if name.is_empty() { part.to_owned() } else { name }));
        }
    } else {
        let name: String = text[at..].bytes().take_while(|&byte| is_word(byte)).map(char::from).collect();
        found.push((at, if name.is_empty() { "*".to_owned() } else { name }));
    }
}

/// The parts of a `{…}` that commas separate, with their places.
fn parts(text: &str, open: usize) -> Vec<(usize, &str)> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0, open + 1);
    for (at, byte) in text.bytes().enumerate().take(closing(text, open)).skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if (byte == b',' && depth == 1) || depth == 0 {
            let part = &text[start..at];
            let place = start + part.len() - part.trim_start().len();
            if !part.trim().is_empty() {
                found.push((place, part.trim()));
            }
            start = at + 1;
        }
    }
    found
}

/// The names that `pub use` gives the crate's root.
fn exports(root: &str) -> Exports {
    let text = strip(root);
    let mut exports = Exports::new();
    for at in words(&text, "use") {
        let end = text[at..].find(';').map_or(text.len(), |end| at + end);
        let path = text[at + 3..end].trim().trim_start_matches("crate::").trim_start_matches("self::");
        let module = path.split("::").next().unwrap_or_default();
        let names = path.rsplit_once("::").map_or(path, |(_, name)| name);
        let names = match (text[at..end].find('{'), names) {
            (Some(open), _) => parts(&text, at + open).into_iter().map(|(_, part)| part).collect(),
            (None, name) => vec![name],
        };
        for name in names {
            let name = name.rsplit_once(" as ").map_or(name, |(_, name)| name);
            let name = name.rsplit("::").next().unwrap_or(name);
            exports.insert(name.trim().to_owned(), module.to_owned());
        }
    }
    exports
}

/// Blanks what is compiled for tests only.
fn without_tests(text: &str) -> String {
    let mut out = text.to_owned();
    let marks = ["#[cfg(test)]", "#[cfg(all(test"];
    while let Some(at) = marks.iter().filter_map(|mark| out.find(mark)).min() {
        let body = out[at..].find(['{', ';']).map_or(out.len(), |body| at + body);
        let end = if out[body..].starts_with('{') { closing(&out, body) } else { (body + 1).min(out.len()) };
        let blank: String = out[at..end].chars().map(|char| if char == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(at..end, &blank);
    }
    out
}

/// Only loom may change what a function's body says.
fn cfgs_in_functions(text: &str, source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut end_of_last = 0;
    for at in words(text, "fn") {
        let named = text[at + 2..].starts_with(' ')
            && text[at + 3..].starts_with(|c: char| c.is_alphabetic() || c == '_');
        if at < end_of_last || !named {
            continue;
        }
        let Some(body) = text[at..].find(['{', ';']).map(|body| at + body) else { continue };
        if text[body..].starts_with('{') {
            end_of_last = closing(text, body);
            let cfgs = words(&text[body..end_of_last], "cfg").into_iter().map(|cfg| body + cfg);
            let is_cfg = |&cfg: &usize| text[..cfg].ends_with("#[") || text[cfg..].starts_with("cfg!(");
            let is_loom =
                |cfg: usize| source[cfg..].lines().next().unwrap_or_default().contains("winddown_loom");
            found.extend(cfgs.filter(is_cfg).filter(|&cfg| !is_loom(cfg)));
        }
    }
    found
}

/// Where a whole word stands.
fn words(text: &str, word: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let whole = |at: usize| {
        let before = at.checked_sub(1).is_none_or(|before| !is_word(bytes[before]));
        before && bytes.get(at + word.len()).is_none_or(|&after| !is_word(after))
    };
    text.match_indices(word).map(|(at, _)| at).filter(|&at| whole(at)).collect()
}

/// Every file in `src`, as `src/…`, with its text.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the sources can be listed") {
            let path: PathBuf = entry.expect("the sources can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).expect("a source can be read");
                let name =
                    path.strip_prefix(root).expect("below the root").to_string_lossy().replace('\\', "/");
                found.push((name, source));
            }
        }
    }
    found.sort();
    found
}
