//! What the rules say of a queue, in the plainest words: no keys, no batches, and a clock that is moved by hand.

use std::collections::{BTreeMap, HashMap};

use winddown::queue::Held;

/// How often a job may crash.
pub const MAX_CRASHES: u32 = 2;

/// A claim: its epoch and its owner's number.
pub type Token = (u64, usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Pending,
    Scheduled(u64),
    Held(Token),
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub order: u64,
    pub priority: i32,
    pub attempts: u32,
    pub interruptions: u32,
    pub crashes: u32,
    pub checkpoint: Option<String>,
    pub at: At,
    /// By whom it was handed back, until somebody has it again.
    handed_back_by: Option<Token>,
}

#[derive(Debug, Default)]
pub struct Model {
    pub now: u64,
    pub jobs: BTreeMap<String, Entry>,
    leases: HashMap<Token, u64>,
    /// Claims of which the owner has not heard.
    unheard: Vec<Token>,
    ending: HashMap<usize, Option<u64>>,
    order: u64,
    pub paused: bool,
    pub interruptions: u64,
    pub crashes: u64,
}

// === impl Model ===

impl Model {
    pub fn enqueue(&mut self, name: &str, priority: i32, delay: u64) -> bool {
        if self.jobs.contains_key(name) {
            return false;
        }
        self.order += 1;
        let at = if delay == 0 { At::Pending } else { At::Scheduled(self.now + delay) };
        let entry = Entry {
            order: self.order,
            priority,
            attempts: 0,
            interruptions: 0,
            crashes: 0,
            checkpoint: None,
            at,
            handed_back_by: None,
        };
        self.jobs.insert(name.to_owned(), entry);
        true
    }

    /// What a claim of this owner will bring, best first; `took` is told when the epoch is known.
    pub fn claim(&mut self, owner: usize, max: usize) -> Vec<String> {
        self.put_back_unheard(owner);
        if self.paused || self.ending.contains_key(&owner) {
            return Vec::new();
        }
        self.reclaim();
        let mut due: Vec<(u64, String)> = self
            .jobs
            .iter()
            .filter_map(|(name, job)| match job.at {
                At::Scheduled(due) if due <= self.now => Some((due, name.clone())),
                _ => None,
            })
            .collect();
        due.sort();
        for (_, name) in due.into_iter().take(max) {
            self.job(&name).at = At::Pending;
        }
        let mut free: Vec<_> = self.jobs.iter().filter(|(_, job)| job.at == At::Pending).collect();
        free.sort_by_key(|(_, job)| (std::cmp::Reverse(job.priority), job.order));
        free.into_iter().take(max).map(|(name, _)| name.clone()).collect()
    }

    pub fn took(&mut self, token: Token, names: &[String], lease: u64, heard: bool) {
        for name in names {
            let job = self.job(name);
            (job.at, job.handed_back_by) = (At::Held(token), None);
        }
        self.leases.insert(token, self.now + lease);
        if !heard {
            self.unheard.push(token);
        }
    }

    fn put_back_unheard(&mut self, owner: usize) {
        let lost: Vec<Token> = self.unheard.iter().copied().filter(|token| token.1 == owner).collect();
        self.unheard.retain(|token| token.1 != owner);
        for job in self.jobs.values_mut() {
            if matches!(job.at, At::Held(token) if lost.contains(&token)) {
                job.at = At::Pending;
            }
        }
    }

    fn reclaim(&mut self) {
        let over: Vec<Token> =
            self.leases.iter().filter(|(_, end)| **end <= self.now).map(|(token, _)| *token).collect();
        for token in over {
            self.leases.remove(&token);
            let ended = self.ending.contains_key(&token.1);
            for job in self.jobs.values_mut().filter(|job| job.at == At::Held(token)) {
                job.at = At::Pending;
                if ended {
                    job.interruptions += 1;
                    self.interruptions += 1;
                } else {
                    job.crashes += 1;
                    self.crashes += 1;
                    if job.crashes > MAX_CRASHES {
                        job.at = At::Dead;
                    }
                }
            }
        }
    }

    fn job(&mut self, name: &str) -> &mut Entry {
        self.jobs.get_mut(name).unwrap()
    }

    fn verdict(&self, token: Token, name: &str) -> Held {
        match self.jobs.get(name) {
            None => Held::Gone,
            Some(job) if job.at == At::Held(token) => Held::Yours,
            Some(_) => Held::Lost,
        }
    }

    pub fn ack(&mut self, token: Token, name: &str) -> Held {
        let held = self.verdict(token, name);
        if held == Held::Yours {
            self.jobs.remove(name);
        }
        held
    }

    pub fn requeue(&mut self, token: Token, name: &str, begun: bool, checkpoint: Option<&str>) -> Held {
        let held = self.verdict(token, name);
        if held == Held::Yours {
            self.interruptions += u64::from(begun);
            let job = self.job(name);
            job.interruptions += u32::from(begun);
            job.checkpoint = checkpoint.map(str::to_owned).or(job.checkpoint.take());
            (job.at, job.handed_back_by) = (At::Pending, Some(token));
        } else if self.jobs.get(name).is_some_and(|job| job.handed_back_by == Some(token)) {
            return Held::Already;
        }
        held
    }

    /// `None`: for the last time.
    pub fn fail(&mut self, token: Token, name: &str, delay: Option<u64>) -> Held {
        let (held, now) = (self.verdict(token, name), self.now);
        if held == Held::Yours {
            let job = self.job(name);
            job.attempts += 1;
            job.at = match delay {
                None => At::Dead,
                Some(0) => At::Pending,
                Some(delay) => At::Scheduled(now + delay),
            };
        }
        held
    }

    pub fn extend(&mut self, leases: &[(Token, String)], length: u64) -> Vec<Held> {
        let held: Vec<Held> = leases.iter().map(|(token, name)| self.verdict(*token, name)).collect();
        let mut tokens: Vec<Token> = leases
            .iter()
            .zip(&held)
            .filter(|(_, held)| held.is_yours())
            .map(|((token, _), _)| *token)
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            let mine =
                leases.iter().zip(&held).filter(|((of, _), held)| *of == token && held.is_yours()).count();
            let all = self.jobs.values().filter(|job| job.at == At::Held(token)).count();
            let mut end = self.now + length;
            if mine < all {
                end = end.max(self.leases[&token]);
            }
            if let Some(Some(kill)) = self.ending.get(&token.1) {
                end = end.min(*kill);
            }
            self.leases.insert(token, end);
        }
        held
    }

    pub fn begin_drain(&mut self, owner: usize, kill_in: Option<u64>) {
        self.put_back_unheard(owner);
        let earlier = self.ending.get(&owner).copied().flatten();
        let kill = kill_in.map(|kill_in| self.now + kill_in).into_iter().chain(earlier).min();
        self.ending.insert(owner, kill);
        if let Some(kill) = kill {
            for (_, end) in self.leases.iter_mut().filter(|(token, _)| token.1 == owner) {
                *end = (*end).min(kill);
            }
        }
    }

    pub fn end_drain(&mut self, owner: usize) {
        self.ending.remove(&owner);
    }

    pub fn retry(&mut self, name: &str) -> bool {
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.at == At::Dead) else { return false };
        (job.at, job.attempts, job.crashes) = (At::Pending, 0, 0);
        true
    }

    /// Pending, scheduled, active, dead.
    pub fn numbers(&self) -> [u64; 4] {
        let mut numbers = [0; 4];
        for job in self.jobs.values() {
            numbers[match job.at {
                At::Pending => 0,
                At::Scheduled(_) => 1,
                At::Held(_) => 2,
                At::Dead => 3,
            }] += 1;
        }
        numbers
    }
}
