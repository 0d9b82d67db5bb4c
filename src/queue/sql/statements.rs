//! All that is said to SQLite.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

/// What every statement is made of: the table's name is put in once, when the queue is opened.
#[derive(Debug, Clone)]
pub(super) struct Statement(Arc<str>);

/// All that is ever said to the table of jobs.
///
/// Each change of a job is one statement, so it is done or not done, whenever the process dies. Times are in milliseconds by the
/// database's clock. `?1` of those that settle jobs is a JSON array of `[id, owner, epoch, ..]`, so that one prepared statement
/// serves a batch of any size.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) table: String,
    pub(super) columns: Statement,
    pub(super) create: Vec<Statement>,
    pub(super) layout: Statement,
    pub(super) has_misfits: Statement,
    pub(super) bury_misfits: Statement,
    pub(super) enqueue: Statement,
    pub(super) claim: Statement,
    pub(super) bury: Statement,
    pub(super) next: Statement,
    pub(super) extend: Statement,
    pub(super) ack: Statement,
    pub(super) nack: Statement,
    pub(super) dead_letter: Statement,
    pub(super) requeue: Statement,
    pub(super) verdict: Statement,
    pub(super) check: Statement,
    pub(super) checkpoint: Statement,
    pub(super) mark_ending: Statement,
    pub(super) shorten: Statement,
    pub(super) forget_marks: Statement,
    pub(super) clear_mark: Statement,
    pub(super) lengthen: Statement,
    pub(super) counts: Statement,
    pub(super) find: Statement,
    pub(super) dead_letters: Statement,
    pub(super) retry: Statement,
}

/// The layout of the table that this version reads and writes.
pub(super) const LAYOUT: i64 = 1;

// Later than any date, and exact also where a reader knows only floating point.
const NEVER: &str = "9007199254740991";

const NOW: &str = "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";

// `line` serves all states: `due` is 0 in those that are pending, and the row's number follows by itself.
const CREATE: [&str; 4] = [
    "CREATE TABLE {table} (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL,
        due INTEGER NOT NULL,
        priority INTEGER NOT NULL DEFAULT 0,
        payload TEXT NOT NULL,
        enqueued_at INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        interruptions INTEGER NOT NULL DEFAULT 0,
        crashes INTEGER NOT NULL DEFAULT 0,
        owner TEXT,
        epoch INTEGER NOT NULL DEFAULT 0,
        kill_at INTEGER,
        checkpoint TEXT,
        reason TEXT
    ) STRICT",
    "CREATE INDEX {line} ON {table} (state, due, priority DESC)",
    // The queue's own row: the layout, and what happened to jobs that are gone by now.
    "INSERT INTO {table} (id, state, due, payload, enqueued_at, attempts)
     VALUES ('winddown:queue', 'queue', {never}, 'layout of this table: see attempts', {now}, {layout})",
    "CREATE TRIGGER {totals} AFTER UPDATE OF interruptions, crashes ON {table}
     WHEN NEW.state <> 'queue' AND (NEW.interruptions = OLD.interruptions + 1 OR NEW.crashes = OLD.crashes + 1) BEGIN
        UPDATE {table} SET
            interruptions = min(interruptions + (NEW.interruptions = OLD.interruptions + 1), {never}),
            crashes = min(crashes + (NEW.crashes = OLD.crashes + 1), {never})
        WHERE id = 'winddown:queue';
     END",
];

// Three short looks into the index, whatever the backlog (leases that ran out are all sorted, and they are never many). `min` keeps a number that is out of bounds from failing the batch.
// The epoch begins above those of any earlier job of the same name, since `seq` is never used twice.
const CLAIM: &str = "
    UPDATE {table} SET
        interruptions = min(interruptions, {never}) + (state = 'active' AND kill_at IS NOT NULL),
        crashes = min(crashes, {never}) + (state = 'active' AND kill_at IS NULL),
        state = CASE WHEN state = 'active' AND kill_at IS NULL AND crashes >= ?4 THEN 'dead' ELSE 'active' END,
        reason = CASE WHEN state = 'active' AND kill_at IS NULL AND crashes >= ?4
            THEN 'its lease ran out ' || (crashes + 1) || ' times without a word' ELSE reason END,
        owner = CASE WHEN state = 'active' AND kill_at IS NULL AND crashes >= ?4 THEN NULL ELSE ?1 END,
        due = CASE WHEN state = 'active' AND kill_at IS NULL AND crashes >= ?4 THEN {now} ELSE {now} + ?3 END,
        epoch = min(max(epoch, min(seq, {never} >> 20) << 20), {never}) + 1,
        kill_at = NULL
    WHERE seq IN (
        SELECT seq FROM (
            SELECT * FROM (SELECT seq, priority FROM {table}
                WHERE state = 'pending' ORDER BY due, priority DESC, seq LIMIT ?2)
            UNION ALL SELECT * FROM (SELECT seq, priority FROM {table}
                WHERE state = 'scheduled' AND due <= {now} ORDER BY due, priority DESC, seq LIMIT ?2)
            UNION ALL SELECT * FROM (SELECT seq, priority FROM {table}
                WHERE state = 'active' AND due <= {now} ORDER BY priority DESC, seq LIMIT ?2)
        ) ORDER BY priority DESC, seq LIMIT ?2
    ) AND NOT EXISTS (SELECT 1 FROM {table} WHERE id = 'winddown:ending:' || ?1)
    RETURNING seq, id, state, priority, payload, attempts, interruptions, crashes, epoch, checkpoint,
        {now} - min(max(enqueued_at, 0), {now}) AS age";

const HELD: &str = "state = 'active' AND seq IN (
    SELECT job.seq FROM json_each(?1) AS lease CROSS JOIN {table} AS job
    ON job.id = lease.value ->> 0 AND job.owner = lease.value ->> 1 AND job.epoch = lease.value ->> 2)";

const MISFIT: &str = "state NOT IN ('pending', 'scheduled', 'active', 'dead', 'queue', 'ending')";

// === impl Statement ===

impl Statement {
    pub(super) fn sql(&self) -> AssertSqlSafe<Arc<str>> {
        // Made of the constants of this file and of a name that `Statements::new` has checked.
        AssertSqlSafe(self.0.clone())
    }
}

// === impl Statements ===

impl Statements {
    /// `table` is a plain name: letters, digits, underscores.
    pub(super) fn new(table: &str) -> Statements {
        let say = |sql: &str| {
            let sql = sql
                .replace("{layout}", &LAYOUT.to_string())
                .replace("{held}", HELD)
                .replace("{misfit}", MISFIT)
                .replace("{now}", NOW)
                .replace("{never}", NEVER);
            let sql = sql
                .replace("{line}", &format!("\"{table}_line\""))
                .replace("{totals}", &format!("\"{table}_totals\""));
            Statement(sql.replace("{table}", &format!("\"{table}\"")).into())
        };
        Statements {
            table: table.to_owned(),
            columns: say("SELECT name FROM pragma_table_info(?1) ORDER BY name"),
            create: CREATE.iter().map(|sql| say(sql)).collect(),
            layout: say("SELECT attempts FROM {table} WHERE id = 'winddown:queue' AND state = 'queue'"),
            has_misfits: say("SELECT EXISTS (SELECT 1 FROM {table} WHERE {misfit})"),
            bury_misfits: say(
                "UPDATE {table} SET reason = 'corrupt row: its state is ' || state, state = 'dead', due = {now} WHERE {misfit}",
            ),
            enqueue: say(
                "INSERT INTO {table} (id, state, due, priority, payload, enqueued_at)
                 VALUES (?1, iif(?4 > 0, 'scheduled', 'pending'), iif(?4 > 0, {now} + ?4, 0), ?2, ?3, {now})
                 ON CONFLICT (id) DO NOTHING",
            ),
            claim: say(CLAIM),
            bury: say(
                "UPDATE {table} SET state = 'dead', due = {now}, owner = NULL, reason = ?2
                 WHERE seq = ?1 AND state = 'active' AND owner = ?3",
            ),
            next: say(
                "SELECT min(wait) FROM (
                    SELECT 0 AS wait WHERE EXISTS (SELECT 1 FROM {table} WHERE state = 'pending')
                    UNION ALL SELECT min(due) - {now} FROM {table} WHERE state = 'scheduled'
                    UNION ALL SELECT min(due) - {now} FROM {table} WHERE state = 'active')",
            ),
            extend: say("UPDATE {table} SET due = min({now} + ?2, coalesce(kill_at, {never})) WHERE {held} RETURNING id, epoch"),
            ack: say("DELETE FROM {table} WHERE {held} RETURNING id, epoch"),
            nack: say(
                "UPDATE {table} SET state = iif(?2 > 0, 'scheduled', 'pending'), due = iif(?2 > 0, {now} + ?2, 0),
                    attempts = min(attempts, {never}) + 1, owner = NULL, kill_at = NULL, reason = ?3
                 WHERE {held} RETURNING id, epoch",
            ),
            dead_letter: say(
                "UPDATE {table} SET state = 'dead', due = {now}, attempts = min(attempts, {never}) + 1,
                    owner = NULL, kill_at = NULL, reason = ?2
                 WHERE {held} RETURNING id, epoch",
            ),
            // The owner and the epoch stay: they tell a repeated hand-back from a stale one.
            requeue: say(
                "UPDATE {table} SET state = 'pending', due = 0, kill_at = NULL,
                    interruptions = min(interruptions, {never}) + back.begun,
                    checkpoint = coalesce(back.checkpoint, {table}.checkpoint)
                 FROM (SELECT value ->> 0 AS id, value ->> 3 AS begun, value ->> 4 AS checkpoint FROM json_each(?1)) AS back
                 WHERE {table}.id = back.id AND {held} RETURNING id, epoch",
            ),
            verdict: say("SELECT state = 'pending' AND owner IS ?2 AND epoch = ?3 FROM {table} WHERE id = ?1"),
            // A write that changes nothing: it takes the lock that what follows in the transaction needs anyway.
            check: say("UPDATE {table} SET owner = owner WHERE {held} RETURNING id, epoch"),
            checkpoint: say("UPDATE {table} SET checkpoint = ?2 WHERE {held} RETURNING id, epoch"),
            mark_ending: say(
                "INSERT INTO {table} (id, state, due, payload, enqueued_at, owner)
                 VALUES ('winddown:ending:' || ?1, 'ending', {now}, '', {now}, ?1) ON CONFLICT (id) DO NOTHING",
            ),
            shorten: say(
                "UPDATE {table} SET
                    kill_at = min(coalesce(kill_at, {never}), coalesce({now} + ?2, {never})),
                    due = min(due, coalesce({now} + ?2, {never}))
                 WHERE state = 'active' AND owner = ?1",
            ),
            // Of owners that never said a last word; a process is gone for good within a week of its end.
            forget_marks: say(
                "DELETE FROM {table} WHERE state = 'ending' AND due < {now} - 7 * 24 * 3600 * 1000 AND NOT EXISTS (
                    SELECT 1 FROM {table} AS job WHERE job.state = 'active' AND job.owner = {table}.owner)",
            ),
            clear_mark: say("DELETE FROM {table} WHERE id = 'winddown:ending:' || ?1"),
            lengthen: say("UPDATE {table} SET kill_at = NULL WHERE state = 'active' AND owner = ?1"),
            counts: say(
                "SELECT state, count(*), {now} - min(max(min(enqueued_at), 0), {now}), max(interruptions), max(crashes)
                 FROM {table} GROUP BY state",
            ),
            find: say(
                "SELECT id, state, attempts, interruptions, crashes FROM {table}
                 WHERE id = ?1 AND state NOT IN ('queue', 'ending')",
            ),
            dead_letters: say(
                "SELECT id, reason, payload, attempts, interruptions, crashes, {now} - min(max(due, 0), {now}) AS age
                 FROM {table} WHERE state = 'dead' ORDER BY due, priority DESC, seq LIMIT ?1",
            ),
            retry: say(
                "UPDATE {table} SET state = 'pending', due = 0, attempts = 0, crashes = 0
                 WHERE id = ?1 AND state = 'dead' RETURNING id",
            ),
        }
    }
}
