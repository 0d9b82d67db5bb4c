//! What the server runs: each is one step that nothing comes between.

use super::super::link::Script;

/// The word for this kind of queue in the key that names the layout.
pub(super) const KIND: &str = "stream";

/// The keys of the queue's own, without their prefix, and their types.
pub(super) const KEYS: [(&str, &str); 14] = [
    ("epoch", "string"), // the last one
    ("held", "hash"),    // by entry, "epoch owner" of the claim that holds it, or has handed it back
    ("leases", "zset"),  // entries that are held, by the end of the lease
    ("later", "zset"),   // entries by the end of their delay, delivered or not
    ("past", "hash"),    // by entry, "attempts interruptions crashes", where not all are zero
    ("notes", "hash"),   // by entry, its checkpoint
    ("ids", "hash"),     // by name of a job that we have added, its entry
    ("dead", "zset"),    // dead letters by when they were given up
    ("reasons", "hash"), // and why
    ("ending", "hash"),  // by owner that is ending, the kill, or "-"
    ("marks", "zset"),   // the same owners by when they can be forgotten
    ("totals", "hash"),  // of interruptions and crashes
    ("wake", "stream"),  // one entry, and a new one for what waits in `XREAD` to look again
    ("tidy", "hash"),    // when to tidy next, and how far that has come
];

// What a holder says of its jobs is let through where the server is full: it frees memory, or loses work where it is refused.
macro_rules! script {
    ($($file:literal),*) => {
        Script::new(concat!("#!lua flags=allow-oom\n", include_str!("base.lua"), $(include_str!($file)),*))
    };
}

pub(super) static GROUP: Script = Script::new(include_str!("group.lua"));
pub(super) static ENQUEUE: Script =
    Script::new(concat!("#!lua\n", include_str!("base.lua"), include_str!("enqueue.lua")));
pub(super) static STEP: Script = script!("tidy.lua", "step.lua");
pub(super) static EXTEND: Script = script!("extend.lua");
pub(super) static REQUEUE: Script = script!("requeue.lua");
pub(super) static FAIL: Script = script!("fail.lua");
pub(super) static DRAIN: Script = script!("drain.lua");
pub(super) static LOOK: Script = script!("tidy.lua", "look.lua");
pub(super) static COUNTS: Script = script!("counts.lua");
pub(super) static DEAD: Script = script!("dead.lua");
pub(super) static RETRY: Script = script!("retry.lua");
pub(super) static FIND: Script = script!("find.lua");
