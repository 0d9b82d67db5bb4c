//! Notes of each run in Redis, by the server's clock and in its order, apart from the queue's own keys.

use std::time::Duration;

use redis::Script;
use redis::aio::MultiplexedConnection;
use winddown::BoxError;
use winddown::queue::Leased;

use crate::duty::Duty;

const PATIENCE: Duration = Duration::from_secs(60);

/// One entry a note: `note|job|epoch|pid|us|stale|attempts|interruptions|crashes`. An effect is fenced: by a claim that is not the latest that was
/// seen it has none, and the note says that it was stale.
const PUT: &str = "
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
local known = tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or '0')
local stale = known > tonumber(ARGV[3]) and 1 or 0
if stale == 0 then
    redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
    if ARGV[1] == 'effect' then redis.call('HINCRBY', KEYS[3], ARGV[2], 1) end
end
redis.call('RPUSH', KEYS[1], table.concat({ARGV[1], ARGV[2], ARGV[3], ARGV[4], string.format('%.0f', us), stale, ARGV[5]}, '|'))
return stale
";

#[derive(Debug, Clone, Copy)]
pub enum Note {
    Start,
    Beat,
    Effect,
}

pub struct Stamps {
    connection: MultiplexedConnection,
    put: Script,
    keys: [String; 3],
}

// === impl Stamps ===

impl Stamps {
    pub async fn open(url: &str, queue: &str) -> Result<Stamps, BoxError> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connection =
            redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
        let keys = ["log", "epochs", "effects"].map(|key| format!("crew:{queue}:{key}"));
        Ok(Stamps { connection, put: Script::new(PUT), keys })
    }

    pub async fn put(&self, note: Note, job: &Leased<Duty>) -> Result<(), BoxError> {
        let note = match note {
            Note::Start => "start",
            Note::Beat => "beat",
            Note::Effect => "effect",
        };
        let before = format!("{}|{}|{}", job.attempts, job.interruptions, job.crashes);
        let mut put = self.put.prepare_invoke();
        for key in &self.keys {
            put.key(key);
        }
        put.arg(note).arg(job.lease.id.as_str()).arg(job.lease.epoch).arg(std::process::id()).arg(before);
        put.invoke_async::<i64>(&mut self.connection.clone()).await?;
        Ok(())
    }
}
