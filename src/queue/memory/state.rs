//! The rules of a queue, on maps.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::queue::job::crashed_too_often;
use crate::queue::{Claimed, Counts, DeadLetter, Enqueued, HandBack, Held, JobId, Lease, NewJob, Owner};

/// Longer than any program runs, and short enough to be added to any instant.
pub(super) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The rules, behind a lock; only `Instant::now` is from outside.
#[derive(Debug)]
pub(super) struct State<T> {
    jobs: HashMap<u64, Entry<T>>,
    ids: HashMap<JobId, u64>,
    line: BTreeSet<Place>,
    // Ends of delays and of leases.
    timed: BTreeSet<(Instant, u64)>,
    // When the owners that are ending are killed.
    ending: HashMap<Owner, Instant>,
    last_order: u64,
    last_epoch: u64,
    interruptions: u64,
    crashes: u64,
}

/// First in line is smallest: higher priority, then earlier.
type Place = (Reverse<i32>, u64);

#[derive(Debug)]
pub(super) struct Entry<T> {
    id: JobId,
    item: T,
    priority: i32,
    enqueued_at: Instant,
    attempts: u32,
    interruptions: u32,
    crashes: u32,
    checkpoint: Option<String>,
    // The last claim, kept when it has handed the job back, so that this may be repeated.
    claim: Option<(Owner, u64)>,
    kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Pending,
    Scheduled { due: Instant },
    Active { until: Instant, kill: Option<Instant> },
    Dead { at: Instant, reason: String },
}

// === impl State ===

impl<T: Clone> State<T> {
    pub(super) fn new() -> State<T> {
        State {
            jobs: HashMap::new(),
            ids: HashMap::new(),
            line: BTreeSet::new(),
            timed: BTreeSet::new(),
            ending: HashMap::new(),
            last_order: 0,
            last_epoch: 0,
            interruptions: 0,
            crashes: 0,
        }
    }

    pub(super) fn enqueue(&mut self, job: NewJob<T>, now: Instant) -> Enqueued {
        if self.ids.contains_key(&job.id) {
            return Enqueued::Exists;
        }
        self.last_order += 1;
        let due = now + job.delay.min(FOREVER);
        let entry = Entry {
            id: job.id.clone(),
            item: job.item,
            priority: job.priority,
            enqueued_at: now,
            attempts: 0,
            interruptions: 0,
            crashes: 0,
            checkpoint: None,
            claim: None,
            kind: if job.delay.is_zero() { Kind::Pending } else { Kind::Scheduled { due } },
        };
        self.ids.insert(job.id, self.last_order);
        self.jobs.insert(self.last_order, entry);
        self.index(self.last_order);
        Enqueued::Added
    }

    pub(super) fn claim(
        &mut self,
        owner: &Owner,
        max: usize,
        lease: Duration,
        max_crashes: u32,
    ) -> Vec<Claimed<T>> {
        if max == 0 || self.ending.contains_key(owner) {
            return Vec::new();
        }
        let now = Instant::now();
        // Expired leases are only looked at here: until one is really claimed anew it is its holder's to settle.
        let due = self
            .timed
            .iter()
            .take_while(|(due, _)| *due <= now)
            .map(|&(_, order)| (order, &self.jobs[&order]));
        let (delayed, expired): (Vec<_>, Vec<_>) =
            due.partition(|(_, job)| matches!(job.kind, Kind::Scheduled { .. }));
        let due = delayed.into_iter().take(max).chain(expired);
        let mut places: Vec<Place> = due.map(|(order, job)| (Reverse(job.priority), order)).collect();
        places.extend(self.line.iter().take(max));
        places.sort_unstable();
        places.truncate(max);
        places
            .into_iter()
            .filter_map(|(_, order)| self.claim_one(order, owner, now, lease, max_crashes))
            .collect()
    }

    fn claim_one(
        &mut self,
        order: u64,
        owner: &Owner,
        now: Instant,
        lease: Duration,
        max_crashes: u32,
    ) -> Option<Claimed<T>> {
        let item = self.jobs.get(&order)?.item.clone();
        self.last_epoch += 1;
        let epoch = self.last_epoch;
        let (crashes, interruptions) = match self.jobs.get(&order)?.kind {
            Kind::Active { kill: None, .. } => (1, 0),
            Kind::Active { kill: Some(_), .. } => (0, 1),
            _ => (0, 0),
        };
        self.crashes += u64::from(crashes);
        self.interruptions += u64::from(interruptions);
        self.edit(order, |entry| {
            entry.crashes = entry.crashes.saturating_add(crashes);
            entry.interruptions = entry.interruptions.saturating_add(interruptions);
            if crashes > 0 && entry.crashes > max_crashes {
                entry.claim = None;
                entry.kind = Kind::Dead { at: now, reason: crashed_too_often(entry.crashes) };
                return None;
            }
            entry.claim = Some((owner.clone(), epoch));
            entry.kind = Kind::Active { until: now + lease.min(FOREVER), kill: None };
            Some(Claimed {
                item,
                lease: Lease { id: entry.id.clone(), owner: owner.clone(), epoch },
                attempts: entry.attempts,
                interruptions: entry.interruptions,
                crashes: entry.crashes,
                checkpoint: entry.checkpoint.clone(),
                priority: entry.priority,
                order,
                age: now - entry.enqueued_at,
            })
        })?
    }

    /// When something can be claimed: now, later, or not before something changes.
    pub(super) fn next(&self) -> Option<Instant> {
        if !self.line.is_empty() {
            return Some(Instant::now());
        }
        self.timed.first().map(|(due, _)| *due)
    }

    pub(super) fn requeue(&mut self, job: &HandBack) -> Held {
        let held = self.settle(&job.lease, |state, order| {
            state.interruptions += u64::from(job.begun);
            state.edit(order, |entry| {
                entry.interruptions = entry.interruptions.saturating_add(job.begun.into());
                if job.checkpoint.is_some() {
                    entry.checkpoint.clone_from(&job.checkpoint);
                }
                // The claim stays: it tells a repeated hand-back from a stale one.
                entry.kind = Kind::Pending;
            });
        });
        let entry = self.ids.get(&job.lease.id).and_then(|order| self.jobs.get(order));
        match entry {
            Some(entry)
                if held == Held::Lost
                    && entry.is_claim(&job.lease)
                    && matches!(entry.kind, Kind::Pending) =>
            {
                Held::Already
            }
            _ => held,
        }
    }

    pub(super) fn begin_drain(&mut self, owner: &Owner, kill: Instant) {
        let kill = self.ending.get(owner).map_or(kill, |earlier| kill.min(*earlier));
        self.ending.insert(owner.clone(), kill);
        for order in self.held_by(owner) {
            self.move_lease(order, kill, Some(kill));
        }
    }

    pub(super) fn end_drain(&mut self, owner: &Owner) {
        self.ending.remove(owner);
        for order in self.held_by(owner) {
            self.edit(order, |entry| {
                if let Kind::Active { kill, .. } = &mut entry.kind {
                    *kill = None;
                }
            });
        }
    }

    /// A try that failed, and what comes of the job then.
    pub(super) fn fail(&mut self, lease: &Lease, then: Kind) -> Held {
        self.settle(lease, |state, order| {
            state.edit(order, |entry| {
                entry.attempts = entry.attempts.saturating_add(1);
                entry.claim = None;
                entry.kind = then;
            });
        })
    }

    /// Moves the end of a lease; with a kill only to an earlier one.
    pub(super) fn move_lease(&mut self, order: u64, to: Instant, killed_at: Option<Instant>) {
        self.edit(order, |entry| {
            if let Kind::Active { until, kill } = &mut entry.kind {
                match killed_at {
                    Some(_) => (*until, *kill) = ((*until).min(to), killed_at),
                    None => *until = kill.map_or(to, |kill| to.min(kill)),
                }
            }
        });
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts =
            Counts { interruptions: self.interruptions, crashes: self.crashes, ..Counts::default() };
        let now = Instant::now();
        for entry in self.jobs.values() {
            match entry.kind {
                Kind::Pending => counts.pending += 1,
                Kind::Scheduled { .. } => counts.scheduled += 1,
                Kind::Active { .. } => counts.active += 1,
                Kind::Dead { .. } => {
                    counts.dead += 1;
                    continue;
                }
            }
            counts.oldest = counts.oldest.max(Some(now - entry.enqueued_at));
        }
        counts
    }

    pub(super) fn dead_letters(&self, max: usize) -> Vec<DeadLetter> {
        let now = Instant::now();
        let mut dead: Vec<_> = self
            .jobs
            .iter()
            .filter_map(|(order, entry)| match &entry.kind {
                Kind::Dead { at, reason } => Some((*at, *order, entry, reason)),
                _ => None,
            })
            .collect();
        dead.sort_unstable_by_key(|&(at, order, ..)| (at, order));
        dead.into_iter()
            .take(max)
            .map(|(at, _, entry, reason)| DeadLetter {
                id: entry.id.clone(),
                reason: reason.clone(),
                payload: None,
                attempts: entry.attempts,
                interruptions: entry.interruptions,
                crashes: entry.crashes,
                age: now - at,
            })
            .collect()
    }

    pub(super) fn retry(&mut self, id: &JobId) -> bool {
        let Some(&order) = self.ids.get(id) else { return false };
        let retried = self.edit(order, |entry| {
            let dead = matches!(entry.kind, Kind::Dead { .. });
            if dead {
                (entry.attempts, entry.crashes, entry.kind) = (0, 0, Kind::Pending);
            }
            dead
        });
        retried.unwrap_or(false)
    }

    pub(super) fn held_by(&self, owner: &Owner) -> Vec<u64> {
        let held = |entry: &Entry<T>| {
            matches!(entry.kind, Kind::Active { .. })
                && entry.claim.as_ref().is_some_and(|(holder, _)| holder == owner)
        };
        self.timed.iter().map(|&(_, order)| order).filter(|order| held(&self.jobs[order])).collect()
    }

    /// Does what a holder asks for, if it is the holder.
    pub(super) fn settle(&mut self, lease: &Lease, change: impl FnOnce(&mut State<T>, u64)) -> Held {
        let Some(&order) = self.ids.get(&lease.id) else { return Held::Gone };
        let entry = &self.jobs[&order];
        if !entry.is_claim(lease) || !matches!(entry.kind, Kind::Active { .. }) {
            return Held::Lost;
        }
        change(self, order);
        Held::Yours
    }

    pub(super) fn remove(&mut self, order: u64) {
        self.unindex(order);
        if let Some(entry) = self.jobs.remove(&order) {
            self.ids.remove(&entry.id);
        }
    }

    /// The only way to change an entry: its places in `line` and `timed` follow its kind.
    pub(super) fn edit<R>(&mut self, order: u64, change: impl FnOnce(&mut Entry<T>) -> R) -> Option<R> {
        self.unindex(order);
        let result = self.jobs.get_mut(&order).map(change);
        self.index(order);
        result
    }

    fn index(&mut self, order: u64) {
        let Some(entry) = self.jobs.get(&order) else { return };
        match entry.kind {
            Kind::Pending => self.line.insert((Reverse(entry.priority), order)),
            Kind::Scheduled { due } | Kind::Active { until: due, .. } => self.timed.insert((due, order)),
            Kind::Dead { .. } => return,
        };
    }

    fn unindex(&mut self, order: u64) {
        let Some(entry) = self.jobs.get(&order) else { return };
        match entry.kind {
            Kind::Pending => self.line.remove(&(Reverse(entry.priority), order)),
            Kind::Scheduled { due } | Kind::Active { until: due, .. } => self.timed.remove(&(due, order)),
            Kind::Dead { .. } => return,
        };
    }
}

// === impl Entry ===

impl<T> Entry<T> {
    fn is_claim(&self, lease: &Lease) -> bool {
        self.claim.as_ref().is_some_and(|(owner, epoch)| *owner == lease.owner && *epoch == lease.epoch)
    }
}
