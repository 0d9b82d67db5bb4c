//! The promises on a stream of Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use winddown::queue::NewJob;
use winddown::queue::redis::{Server, Stream};

use super::Bench;
use super::server::Redis;

pub struct OnStream {
    queue: Stream<String>,
    connection: MultiplexedConnection,
    _redis: Redis,
}

/// The clock is the server's, so what it is compared with is moved instead. IDs of entries stay as they are.
const PASS: &str = "
local own = '{jobs}:group:workers:'
for _, key in ipairs({ 'leases', 'later', 'dead', 'marks' }) do
  for _, member in ipairs(redis.call('ZRANGE', own .. key, 0, -1)) do
    redis.call('ZINCRBY', own .. key, -ARGV[1], member)
  end
end
local ending = redis.call('HGETALL', own .. 'ending')
for at = 1, #ending, 2 do
  if ending[at + 1] ~= '-' then
    redis.call('HINCRBY', own .. 'ending', ending[at], -ARGV[1])
  end
end
";

/// All keys, and what is in them as the server would store it, with the times of deliveries.
const DUMP: &str = "
local keys, all = redis.call('KEYS', '*'), {}
table.sort(keys)
for at, key in ipairs(keys) do
  all[at] = key .. redis.sha1hex(redis.call('DUMP', key))
end
return table.concat(all, '\\n')
";

pub async fn bench() -> OnStream {
    let redis = Redis::start();
    let queue = Stream::open(Server::at(&redis.url()).unwrap(), "jobs", "workers").await.unwrap();
    OnStream { queue, connection: redis.connection().await, _redis: redis }
}

impl OnStream {
    async fn eval<R: redis::FromRedisValue>(&self, script: &str, arg: u128) -> R {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(0).arg(u64::try_from(arg).unwrap());
        eval.query_async(&mut self.connection.clone()).await.unwrap()
    }
}

impl Bench for OnStream {
    type Queue = Stream<String>;

    fn queue(&self) -> &Stream<String> {
        &self.queue
    }

    async fn enqueue(&self, job: NewJob<String>) {
        self.queue.enqueue(&job).await.unwrap();
    }

    async fn pass(&self, time: Duration) {
        self.eval::<()>(PASS, time.as_millis()).await;
    }

    async fn dump(&self) -> String {
        self.eval(DUMP, 0).await
    }
}
