//! Many calls in any order, by several owners, some of which hear no answer: each as the model says.

use std::time::Duration;

use redis::Cmd;
use winddown::queue::redis::{List, Server};
use winddown::queue::{Enqueued, HandBack, Held, JobState, Lease, NewJob, Owner, Queue, QueueError};

use crate::dice::Dice;
use crate::model::{At, MAX_CRASHES, Model, Token};
use crate::proxy::Proxy;
use crate::server::Redis;
use crate::{Jobs, id};

/// One ends like another, and all have what means something in a pattern.
const OWNERS: [&str; 3] = ["own[er]*?\\", "1:own[er]*?\\", "ü %d+ *"];
const CALLS: u64 = 150;
/// Time passes in steps of this. Whatever ends does so about half a step beside, and no two at once: how long the test itself takes
/// does not matter.
const STEP: u64 = 2000;
const NAMES: [&str; 10] =
    ["a", "b", "a:b", "0", "é€𝄞", "with space", "%d+*[^", "winddown", "\\n\"'{}", "last"];
const PRIORITIES: [i32; 7] = [0, 0, 0, 5, -3, i32::MIN, i32::MAX];

const PASS: &str = "
    local by = tonumber(ARGV[1])
    for _, key in ipairs({'{model}:leases', '{model}:scheduled', '{model}:dead'}) do
        for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -by, member) end
    end
    local marks = redis.call('HGETALL', '{model}:ending')
    for i = 1, #marks, 2 do
        local mark = marks[i + 1]:gsub('%d+', function(time) return string.format('%.0f', tonumber(time) - by) end)
        redis.call('HSET', '{model}:ending', marks[i], mark)
    end
";

struct Play {
    redis: Redis,
    lines: Vec<Proxy>,
    queues: Vec<Jobs>,
    owners: Vec<Owner>,
    /// Hears of everything.
    watcher: Jobs,
    model: Model,
    dice: Dice,
    epoch: u64,
    /// All that was ever heard of, the newest last.
    heard: Vec<(Token, String)>,
    calls: u64,
}

// === impl Play ===

impl Play {
    async fn begin(seed: u64) -> Play {
        let redis = Redis::start();
        let mut play = Play {
            lines: Vec::new(),
            queues: Vec::new(),
            owners: Vec::new(),
            watcher: open(&redis.url()).await,
            redis,
            model: Model::default(),
            dice: Dice::new(seed),
            epoch: 0,
            heard: Vec::new(),
            calls: 0,
        };
        play.teach().await;
        for owner in OWNERS {
            let line = Proxy::to(&play.redis.socket()).await;
            play.queues.push(open(&line.url()).await);
            play.lines.push(line);
            play.owners.push(owner.parse().unwrap());
        }
        play
    }

    /// Has the server know all scripts: else the answer that is lost may be that it does not.
    async fn teach(&self) {
        let (jobs, one) = (&self.watcher, "teacher".parse().unwrap());
        let lease = Lease { id: id("nobody"), owner: "nobody".parse().unwrap(), epoch: 1 };
        let leases = std::slice::from_ref(&lease);
        assert!(jobs.claim(&one, 1, Duration::from_secs(1)).await.unwrap().is_empty());
        assert_eq!(jobs.nack(&lease, Duration::ZERO, "").await.unwrap(), Held::Gone);
        assert_eq!(jobs.extend(leases, Duration::ZERO).await.unwrap(), [Held::Gone]);
        assert_eq!(jobs.requeue(&[HandBack::untouched(lease.clone())]).await.unwrap(), [Held::Gone]);
        jobs.begin_drain(&one, None).await.unwrap();
        jobs.end_drain(&one).await.unwrap();
    }

    /// A length of time that ends at no moment at which anything else does.
    fn length(&mut self) -> u64 {
        STEP * self.dice.roll(4) as u64 + STEP / 2 + 5 * self.calls
    }

    /// Some of the claims of which was heard, no job twice, those of the last time more often.
    fn some(&mut self, most: usize) -> Vec<(Token, String)> {
        let mut some: Vec<(Token, String)> = Vec::new();
        for _ in 0..self.dice.roll(most) + 1 {
            let back = self.dice.roll(self.heard.len().min(12));
            let one = self.heard[self.heard.len() - 1 - back].clone();
            if some.iter().all(|(_, name)| *name != one.1) {
                some.push(one);
            }
        }
        some
    }

    fn lease(&self, (token, name): &(Token, String)) -> Lease {
        Lease { id: id(name), owner: self.owners[token.1].clone(), epoch: token.0 }
    }

    fn leases(&self, some: &[(Token, String)]) -> Vec<Lease> {
        some.iter().map(|one| self.lease(one)).collect()
    }

    /// Has the next answer lost, now and then.
    async fn loses(&mut self, owner: usize) -> bool {
        let loses = self.dice.chance(20);
        if loses {
            // Else what is lost may be the answer to the greeting of a new connection.
            self.queues[owner].is_paused().await.unwrap();
            self.lines[owner].lose_the_next_answer();
        }
        loses
    }

    async fn call(&mut self) {
        self.calls += 1;
        let owner = self.dice.roll(OWNERS.len());
        match self.dice.roll(100) {
            0..=17 => self.enqueue(owner).await,
            18..=47 => self.step(owner).await,
            48..=57 => self.pass().await,
            58..=60 => {
                let pauses = self.dice.chance(50);
                self.model.paused = pauses;
                let jobs = &self.watcher;
                if pauses { jobs.pause().await } else { jobs.resume().await }.unwrap();
            }
            61..=64 => {
                let kill_in = self.dice.chance(70).then(|| self.length());
                self.model.begin_drain(owner, kill_in);
                let loses = self.loses(owner).await;
                let kill_in = kill_in.map(Duration::from_secs);
                told(self.queues[owner].begin_drain(&self.owners[owner], kill_in).await, loses);
            }
            65..=70 => {
                self.model.end_drain(owner);
                self.watcher.end_drain(&self.owners[owner]).await.unwrap();
            }
            71..=74 => {
                let name = *self.dice.pick(&NAMES);
                let retried = self.watcher.retry(&id(name)).await.unwrap();
                assert_eq!(retried, self.model.retry(name));
            }
            _ if self.heard.is_empty() => {}
            75..=79 => self.ack(owner).await,
            80..=88 => self.requeue(owner).await,
            89..=93 => self.extend(owner).await,
            _ => self.fail(owner).await,
        }
    }

    async fn enqueue(&mut self, owner: usize) {
        let mut jobs = Vec::new();
        let mut new = Vec::new();
        for _ in 0..self.dice.roll(3) + 1 {
            let (name, priority) = (*self.dice.pick(&NAMES), *self.dice.pick(&PRIORITIES));
            let delay = if self.dice.chance(30) { self.length() + new.len() as u64 } else { 0 };
            let job = NewJob::new(id(name), format!("item {name} \0")).priority(priority);
            jobs.push(job.delay(Duration::from_secs(delay)));
            let added = self.model.enqueue(name, priority, delay);
            new.push(if added { Enqueued::Added } else { Enqueued::Exists });
        }
        let said = self.queues[owner].enqueue_all(&jobs).await;
        assert_eq!(said.unwrap(), new);
    }

    async fn step(&mut self, owner: usize) {
        let done = if self.heard.is_empty() || self.dice.chance(50) { Vec::new() } else { self.some(3) };
        let held: Vec<Held> = done.iter().map(|(token, name)| self.model.ack(*token, name)).collect();
        let (max, lease) = (self.dice.roll(4) + 1, self.length());
        let names = self.model.claim(owner, max);
        let loses = self.loses(owner).await;
        let leases = self.leases(&done);
        let length = Duration::from_secs(lease);
        let stepped = self.queues[owner].step(&leases, &self.owners[owner], max, length).await;
        let Some(stepped) = told(stepped, loses) else {
            if !names.is_empty() {
                let epoch = self.last_epoch().await;
                self.model.took((epoch, owner), &names, lease, false);
            }
            return;
        };
        assert_eq!(stepped.held, held, "{done:?}");
        let claimed: Vec<&str> = stepped.claimed.iter().map(|job| job.lease.id.as_str()).collect();
        assert_eq!(claimed, names);
        let Some(first) = stepped.claimed.first() else { return };
        let token = (first.lease.epoch, owner);
        assert!(token.0 > self.epoch, "{} after {}", token.0, self.epoch);
        self.epoch = token.0;
        self.model.took(token, &names, lease, true);
        for job in &stepped.claimed {
            let said = &self.model.jobs[job.lease.id.as_str()];
            assert_eq!(job.lease, self.lease(&(token, job.lease.id.to_string())));
            assert_eq!(job.item, format!("item {} \0", job.lease.id));
            assert_eq!(
                (job.order, job.priority, job.attempts, job.interruptions, job.crashes, &job.checkpoint),
                (
                    said.order,
                    said.priority,
                    said.attempts,
                    said.interruptions,
                    said.crashes,
                    &said.checkpoint
                ),
                "{}",
                job.lease.id
            );
            self.heard.push((token, job.lease.id.to_string()));
        }
    }

    async fn last_epoch(&self) -> u64 {
        let mut ask = Cmd::new();
        ask.arg("GET").arg("{model}:epoch");
        ask.query_async(&mut self.redis.connection().await).await.unwrap()
    }

    async fn pass(&mut self) {
        let by = STEP * (self.dice.roll(3) as u64 + 1);
        self.model.now += by;
        let mut pass = Cmd::new();
        pass.arg("EVAL").arg(PASS).arg(0).arg(by * 1000);
        let () = pass.query_async(&mut self.redis.connection().await).await.unwrap();
    }

    async fn ack(&mut self, owner: usize) {
        let some = self.some(4);
        let held: Vec<Held> = some.iter().map(|(token, name)| self.model.ack(*token, name)).collect();
        let loses = self.loses(owner).await;
        let said = told(self.queues[owner].ack(&self.leases(&some)).await, loses);
        assert!(said.is_none_or(|said| said == held), "{some:?}: not {held:?}");
    }

    async fn requeue(&mut self, owner: usize) {
        let some = self.some(4);
        let (mut back, mut held) = (Vec::new(), Vec::new());
        for one in &some {
            let checkpoint = self.dice.chance(50).then(|| format!("+{}\n\0\n{}", self.calls, one.1));
            let mut job = HandBack::untouched(self.lease(one));
            (job.begun, job.checkpoint) = (self.dice.chance(50), checkpoint);
            held.push(self.model.requeue(one.0, &one.1, job.begun, job.checkpoint.as_deref()));
            back.push(job);
        }
        let loses = self.loses(owner).await;
        let said = told(self.queues[owner].requeue(&back).await, loses);
        assert!(said.as_ref().is_none_or(|said| *said == held), "{some:?}: {said:?}, not {held:?}");
    }

    async fn extend(&mut self, owner: usize) {
        let (some, length) = (self.some(4), self.length());
        let held = self.model.extend(&some, length);
        let loses = self.loses(owner).await;
        let length = Duration::from_secs(length);
        let said = told(self.queues[owner].extend(&self.leases(&some), length).await, loses);
        assert!(said.as_ref().is_none_or(|said| *said == held), "{some:?}: {said:?}, not {held:?}");
    }

    async fn fail(&mut self, owner: usize) {
        let (token, name) = self.some(1).remove(0);
        let lease = self.lease(&(token, name.clone()));
        let delay = match self.dice.roll(3) {
            0 => None,
            1 => Some(0),
            _ => Some(self.length()),
        };
        let held = self.model.fail(token, &name, delay);
        let loses = self.loses(owner).await;
        let queue = &self.queues[owner];
        let said = match delay {
            None => queue.dead_letter(&lease, "no").await,
            Some(delay) => queue.nack(&lease, Duration::from_secs(delay), "no").await,
        };
        assert!(told(said, loses).is_none_or(|said| said == held), "{lease:?}: not {held:?}");
    }

    /// All that can be seen of the queue.
    async fn compare(&self) {
        let counts = self.watcher.counts().await.unwrap();
        let numbers = [counts.pending, counts.scheduled, counts.active, counts.dead];
        assert_eq!(numbers, self.model.numbers(), "{:#?}", self.model.jobs);
        assert_eq!((counts.interruptions, counts.crashes), (self.model.interruptions, self.model.crashes));
        for name in NAMES {
            let standing = self.watcher.find(&id(name)).await.unwrap();
            let standing = standing.map(|s| (s.state, s.attempts, s.interruptions, s.crashes));
            let said = self.model.jobs.get(name).map(|job| {
                let state = match job.at {
                    At::Pending => JobState::Pending,
                    At::Scheduled(_) => JobState::Scheduled,
                    At::Held(_) => JobState::Active,
                    At::Dead => JobState::Dead,
                };
                (state, job.attempts, job.interruptions, job.crashes)
            });
            assert_eq!(standing, said, "{name}");
        }
    }
}

async fn open(url: &str) -> Jobs {
    List::open(Server::at(url).unwrap(), "model").await.unwrap().max_crashes(MAX_CRASHES)
}

/// What was answered, unless it was lost.
fn told<T: std::fmt::Debug>(answer: Result<T, QueueError>, lost: bool) -> Option<T> {
    if lost {
        answer.expect_err("its answer was lost");
        return None;
    }
    Some(answer.unwrap())
}

#[tokio::test]
async fn whatever_is_called_in_whatever_order_is_answered_as_the_rules_say() {
    let seeds: Vec<u64> = match std::env::var("WINDDOWN_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..12).collect(),
    };
    for seed in seeds {
        let mut play = Play::begin(seed).await;
        for _ in 0..CALLS {
            // Shown only if the test fails.
            println!("seed {seed}, call {}", play.calls + 1);
            play.call().await;
            play.compare().await;
        }
    }
}
