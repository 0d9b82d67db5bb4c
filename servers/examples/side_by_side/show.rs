//! What was seen, as a table and as JSON.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::json;

use crate::scenes::Scene;
use crate::serve::Which;

/// What the clients of one run saw.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Nothing where the server has no such thing.
    pub held: Option<bool>,
    pub words: String,
}

/// All runs of a scene against one server.
pub struct Row {
    pub scene: &'static Scene,
    pub which: Which,
    pub shown: Vec<Shown>,
}

/// Without a panic where nobody reads any more.
pub fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut last = "";
    for row in rows {
        if row.scene.name != last {
            last = row.scene.name;
            let _ = writeln!(text, "\n{}: {}", row.scene.name, row.scene.must);
        }
        let held = match row.held() {
            Some(true) => "holds",
            Some(false) => "FAILS",
            None => "  -  ",
        };
        let _ = writeln!(text, "  {:<12} {held}  {}", row.which.as_str(), row.words());
    }
    let _ = writeln!(text);
    for which in Which::ALL {
        let of = rows.iter().filter(|row| row.which == which).filter_map(Row::held);
        let held = of.clone().filter(|&held| held).count();
        let _ = writeln!(text, "{} holds in {held} of {} scenes", which.as_str(), of.count());
    }
    text
}

// === impl Shown ===

impl Shown {
    pub fn new(held: bool, words: impl Into<String>) -> Self {
        Shown { held: Some(held), words: words.into() }
    }

    /// For a server that has no such thing.
    pub fn nothing(words: impl Into<String>) -> Self {
        Shown { held: None, words: words.into() }
    }
}

// === impl Row ===

impl Row {
    /// Whether it held in every run.
    pub fn held(&self) -> Option<bool> {
        self.shown.iter().map(|shown| shown.held).reduce(|all, held| Some(all? && held?)).flatten()
    }

    /// What was seen, of several runs in their order.
    fn words(&self) -> String {
        let all: Vec<&str> = self.shown.iter().map(|shown| shown.words.as_str()).collect();
        let same = |all: &[&str]| all.windows(2).all(|two| two[0] == two[1]);
        if all.len() > 1 && same(&all) {
            return format!("{}, in each of {} runs", all[0], all.len());
        }
        // What is counted comes first, and is often all that differs.
        let (counts, rests): (Vec<_>, Vec<_>) =
            all.iter().map(|words| words.split_at(words.find(' ').unwrap_or(words.len()))).unzip();
        if same(&rests) { counts.join(", ") + rests[0] } else { all.join("; ") }
    }

    pub fn to_json(&self) -> String {
        json!({
            "scene": self.scene.name, "server": self.which.as_str(), "runs": self.shown.len(),
            "held": self.held(), "words": self.words(),
        })
        .to_string()
    }
}
