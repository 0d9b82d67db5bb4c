//! A grace period, divided.

use std::fmt::Write as _;
use std::time::Duration;

mod duration;
mod error;
mod grace;
mod plan;
mod table;

pub use self::duration::{DurationError, parse_duration};
pub use self::error::BudgetError;
pub use self::grace::Grace;
pub use self::plan::Plan;

pub(crate) use self::duration::{Human, LONGEST};

use self::grace::Granted;
use self::table::{Rungs, divide};

/// The grace that is assumed where nothing better is known.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// What `Requeue` and `Close` have together once forced.
const FORCED: Duration = Duration::from_secs(2);

/// A grace period divided among the phases of a stop.
///
/// What is set stays as it is; what is not is divided from the grace; `drain` gets what is not reserved. Nothing is
/// refused before [`plan`](Self::plan), which the coordinator calls.
///
/// | grace | unready | drain | requeue | close | margin |
/// | --- | --- | --- | --- | --- | --- |
/// | 5 s | 0 | 3.5 s | 0.7 s | 0.5 s | 0.3 s |
/// | 10 s | 0 | 8 s | 1 s | 0.5 s | 0.5 s |
/// | 30 s | 0, behind a balancer 5 s | 24 s, behind a balancer 19 s | 3 s | 2 s | 1 s |
/// | 45 s and more | the same | the rest | 4 s | 3 s | 1 s |
///
/// ```
/// use std::time::Duration;
/// use winddown::{Budget, Phase};
///
/// let plan = Budget::from_grace_period(Duration::from_secs(30)).unready(Duration::from_secs(5)).plan()?;
/// assert_eq!(plan.drain_limit(), Duration::from_secs(19));
///
/// let refused = Budget::from_grace_period(Duration::from_secs(10)).drain(Duration::from_secs(9)).plan().unwrap_err();
/// assert!(refused.to_string().starts_with("drain is 9 s: at most 8 s fit into the grace of 10 s, given by code"));
/// # Ok::<(), winddown::BudgetError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a budget does nothing until it is given to a coordinator"]
pub struct Budget {
    granted: Granted,
    prestop_by: &'static str,
    balancer: bool,
    unready: Option<Duration>,
    drain: Option<Duration>,
    requeue: Option<Duration>,
    close: Option<Duration>,
    margin: Option<Duration>,
    forced: Duration,
    fault: Option<BudgetError>,
}

// === impl Budget ===

impl Budget {
    /// Divides a grace period that is known, so that a budget which does not fit it is refused.
    ///
    /// The number alone does not tell whether a balancer has to notice first, so `unready` is 0: behind one, set it or
    /// say so with [`balancer`](Self::balancer). `Budget::detect()` does that on Kubernetes.
    pub fn from_grace_period(grace: Duration) -> Self {
        Self::given(grace, "code")
    }

    /// As [`from_grace_period`](Self::from_grace_period), and says who gave it.
    pub fn given(grace: Duration, by: &'static str) -> Self {
        Self::with_grace(grace, Grace::Given { by })
    }

    /// Divides a grace period that is a guess; what does not fit it is cut, with a warning.
    pub fn assumed(grace: Duration, why: &'static str) -> Self {
        Self::with_grace(grace, Grace::Assumed { why })
    }

    /// Sets the time between the platform's signal and its kill, which counts as *given* from here on.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.granted.grace = grace;
        self.granted.source = Grace::Given { by: "code" };
        self
    }

    /// Sets how much of the grace is used up before the signal comes, as by a preStop hook on Kubernetes.
    ///
    /// A balancer has noticed by then, so `unready` is 0 unless it is set too.
    pub fn prestop(self, prestop: Duration) -> Self {
        self.prestop_by(prestop, "prestop")
    }

    /// Says whether a balancer in front has to notice before intake stops. If so and `unready` is not set, it is 5 s
    /// from 30 s of grace on, less with less, and 0 from 10 s down.
    pub fn balancer(mut self, yes: bool) -> Self {
        self.balancer = yes;
        self
    }

    /// Sets how long traffic is still served after readiness has turned false. Only what a balancer feeds waits that out.
    pub fn unready(mut self, limit: Duration) -> Self {
        self.unready = Some(limit);
        self
    }

    /// Sets how long work in flight may take to finish.
    pub fn drain(mut self, limit: Duration) -> Self {
        self.drain = Some(limit);
        self
    }

    /// Sets how much is reserved for ending and handing back what did not finish.
    pub fn requeue(mut self, reserve: Duration) -> Self {
        self.requeue = Some(reserve);
        self
    }

    /// Sets how much is reserved for closing what the program holds.
    pub fn close(mut self, reserve: Duration) -> Self {
        self.close = Some(reserve);
        self
    }

    /// Sets how long before the kill all has to be over; the watchdog comes at half of it.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Sets what handing back and closing have together once a second signal has forced the stop; 2 s unless set, and
    /// never more than planned.
    pub fn forced(mut self, limit: Duration) -> Self {
        self.forced = limit;
        self
    }

    /// Lays the budget out on the clock of a stop.
    ///
    /// # Errors
    ///
    /// Refuses a grace of zero or of more than 365 days, a `prestop` that leaves nothing of it, a setting of the
    /// environment that cannot be read, and a budget that does not fit a *given* grace. The error names the setting,
    /// its value and its bound, and prints the ladder. Where the grace is only *assumed*, what does not fit is cut and
    /// the plan keeps a warning.
    pub fn plan(&self) -> Result<Plan, BudgetError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        self.check_grace()?;
        let rungs = self.rungs();
        let mut plan = Plan::new(self.granted, rungs, self.forced);
        let excess = rungs.sum().saturating_sub(plan.kill());
        if !excess.is_zero() {
            let refused = self.too_long(rungs, excess);
            match self.granted.source {
                Grace::Given { .. } => return Err(refused.with_ladder(self.ladder(rungs))),
                Grace::Assumed { .. } => {
                    plan.warn(format!(
                        "{refused}; the rest is cut: set WINDDOWN_GRACE to what the platform grants"
                    ));
                }
            }
        } else if self.drain.is_none() && rungs.drain.is_zero() {
            plan.warn("nothing of the grace is left for the drain".to_owned());
        }
        if plan.margin().is_zero() {
            plan.warn("margin is 0 s: nothing is left between the end of close and the kill".to_owned());
        }
        Ok(plan)
    }

    /// As [`prestop`](Self::prestop), and says which setting an error names.
    pub(crate) fn prestop_by(mut self, prestop: Duration, by: &'static str) -> Self {
        self.granted.prestop = prestop;
        self.prestop_by = by;
        self
    }

    /// Keeps a setting that cannot be read, so that [`plan`](Self::plan) refuses it: the first one stays.
    pub(crate) fn unreadable(mut self, setting: &'static str, value: String, why: DurationError) -> Self {
        self.fault.get_or_insert_with(|| BudgetError::unreadable(setting, value, why));
        self
    }

    fn with_grace(grace: Duration, source: Grace) -> Self {
        Self {
            granted: Granted { grace, source, prestop: Duration::ZERO },
            prestop_by: "prestop",
            balancer: false,
            unready: None,
            drain: None,
            requeue: None,
            close: None,
            margin: None,
            forced: FORCED,
            fault: None,
        }
    }

    fn check_grace(&self) -> Result<(), BudgetError> {
        let Granted { grace, prestop, .. } = self.granted;
        if grace.is_zero() {
            return Err(BudgetError::bounded(
                self.grace_name(),
                grace,
                Duration::ZERO,
                "it must be more than 0 s",
            ));
        }
        if grace > LONGEST {
            let why = "it must be at most 8760 h, a year";
            return Err(BudgetError::bounded(self.grace_name(), grace, LONGEST, why));
        }
        if prestop >= grace {
            let whole = Granted { prestop: Duration::ZERO, ..self.granted };
            let why = format!("it counts in the grace and must be less than that: {whole}");
            return Err(BudgetError::bounded(self.prestop_by, prestop, grace, why));
        }
        Ok(())
    }

    /// As an error names it: who set it knows where to look.
    fn grace_name(&self) -> String {
        match self.granted.source {
            Grace::Given { by: "code" } | Grace::Assumed { .. } => "grace".to_owned(),
            Grace::Given { by } => format!("grace ({by})"),
        }
    }

    fn rungs(&self) -> Rungs {
        let kill = self.granted.left();
        let told = self.balancer && self.granted.prestop.is_zero();
        let [unready, requeue, close, margin] = divide(
            kill,
            [
                (self.unready.or((!told).then_some(Duration::ZERO)), |row| row.unready),
                (self.requeue, |row| row.requeue),
                (self.close, |row| row.close),
                (self.margin, |row| row.margin),
            ],
        );
        let rungs = Rungs { unready, drain: Duration::ZERO, requeue, close, margin };
        Rungs { drain: self.drain.unwrap_or(kill.saturating_sub(rungs.sum())), ..rungs }
    }

    /// Blames the longest of the rungs that were set: it has the most to give. Where even that is too little, the grace
    /// itself is too short.
    fn too_long(&self, rungs: Rungs, excess: Duration) -> BudgetError {
        let set = [
            ("unready", self.unready),
            ("drain", self.drain),
            ("requeue", self.requeue),
            ("close", self.close),
            ("margin", self.margin),
        ];
        let longest =
            set.into_iter().filter_map(|(name, limit)| Some((name, limit?))).max_by_key(|(_, limit)| *limit);
        match longest {
            Some((name, limit)) if limit >= excess => {
                let bound = limit - excess;
                let why = format!("at most {} fit into the grace of {}", Human(bound), self.granted);
                BudgetError::bounded(name, limit, bound, why)
            }
            _ => {
                let needed = rungs.sum();
                let why = format!("the ladder needs {}", Human(needed));
                BudgetError::bounded(self.grace_name(), self.granted.left(), needed, why)
            }
        }
    }

    /// The ladder as asked for, up to the rung that reaches beyond the kill.
    fn ladder(&self, rungs: Rungs) -> String {
        let mut text = String::new();
        let mut end = Duration::ZERO;
        let kill = self.granted.left();
        for (name, limit) in rungs.named() {
            end = end.saturating_add(limit);
            let over = if end > kill { "  beyond the kill" } else { "" };
            let _ = writeln!(text, "  {name:<8} {:>9.3}   until {:>9.3}{over}", Human(limit), Human(end));
        }
        let _ = writeln!(text, "  {:<8} {:>9}   at    {:>9.3}", "kill", "", Human(kill));
        text
    }
}

/// A grace of 10 s, assumed.
impl Default for Budget {
    fn default() -> Self {
        Self::assumed(DEFAULT_GRACE, "nothing says otherwise")
    }
}
