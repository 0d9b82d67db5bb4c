//! Compares a table with the one that was kept.

use std::path::Path;
use std::{env, fs};

/// Fails with the first line that differs from `tests/snapshots/{name}.txt`; with `WINDDOWN_UPDATE_SNAPSHOTS=1` in the
/// environment the file is written instead.
#[track_caller]
pub fn check(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name).with_extension("txt");
    if env::var_os("WINDDOWN_UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        fs::write(&path, now).expect("the snapshot can be written");
        return;
    }
    // A checkout on Windows may have changed the ends of lines.
    let kept = fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    let differs = now.lines().zip(kept.lines()).position(|(now, kept)| now != kept);
    let at = differs.unwrap_or_else(|| now.lines().count().min(kept.lines().count()));
    assert!(
        now == kept,
        "line {} of snapshot `{name}` differs\n kept: {}\n  now: {}\n(WINDDOWN_UPDATE_SNAPSHOTS=1 keeps this one)",
        at + 1,
        kept.lines().nth(at).unwrap_or("nothing"),
        now.lines().nth(at).unwrap_or("nothing"),
    );
}
