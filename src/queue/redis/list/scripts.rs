//! The scripts: each is one atomic move.

use crate::queue::redis::link::Script;

// A server that is full refuses what makes it fuller. Only new jobs do, in the long run: what settles and claims them goes on.
macro_rules! script {
    ($name:literal) => {
        Script::new(concat!("#!lua flags=allow-oom\n", include_str!("place.lua"), include_str!($name)))
    };
    (claiming $name:literal) => {
        Script::new(concat!(
            "#!lua flags=allow-oom\n",
            include_str!("place.lua"),
            include_str!("claim.lua"),
            include_str!($name)
        ))
    };
}

pub(super) static BEGIN_DRAIN: Script = script!(claiming "begin_drain.lua");
pub(super) static COUNTS: Script = script!("counts.lua");
pub(super) static DEAD_LETTERS: Script = script!("dead_letters.lua");
pub(super) static ENQUEUE: Script =
    Script::new(concat!("#!lua\n", include_str!("place.lua"), include_str!("enqueue.lua")));
pub(super) static EXTEND: Script = script!("extend.lua");
pub(super) static FAIL: Script = script!("fail.lua");
pub(super) static FIND: Script = script!("find.lua");
pub(super) static LOOK: Script = script!(claiming "look.lua");
pub(super) static REQUEUE: Script = script!("requeue.lua");
pub(super) static RETRY: Script = script!("retry.lua");
pub(super) static STEP: Script = Script::new(concat!(
    "#!lua flags=allow-oom\nlocal function shared()\n",
    include_str!("place.lua"),
    include_str!("claim.lua"),
    "return {put_back = put_back, release = release, verdict = verdict, recover = recover, reclaim = reclaim,
        take = take, claimed_again = claimed_again, next_due = next_due}\nend\n",
    include_str!("step.lua")
));
pub(super) static WAKE: Script = script!("wake.lua");
