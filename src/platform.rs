//! Where the program runs, and what that says about its grace period.

use std::env;
use std::io::{self, IsTerminal};
use std::time::Duration;

use crate::budget::{Budget, parse_duration};

const GRACE: &str = "WINDDOWN_GRACE";
const PRESTOP: &str = "WINDDOWN_PRESTOP";

/// What [`detect`] found; plain data, so that what follows from it can be tried without any platform.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The text of `WINDDOWN_GRACE`: the time between the platform's signal and its kill.
    pub grace: Option<String>,
    /// The text of `WINDDOWN_PRESTOP`: how much of the grace a preStop hook uses up before the signal.
    pub prestop: Option<String>,
    /// Whether this is a container on Kubernetes.
    pub kubernetes: bool,
    /// Whether this is Windows.
    pub windows: bool,
    /// Whether somebody sits at a terminal.
    pub terminal: bool,
}

/// Looks at the environment. It never fails: what cannot be read is refused later, by [`Budget::plan`].
pub fn detect() -> Found {
    // Text that is no Unicode is kept as far as it can be, to be refused by name.
    let text = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Found {
        grace: text(GRACE),
        prestop: text(PRESTOP),
        kubernetes: env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        windows: env::consts::FAMILY == "windows",
        terminal: io::stdin().is_terminal() || io::stderr().is_terminal(),
    }
}

// === impl Found ===

impl Found {
    /// The budget for such a place: see [`Budget::detect`].
    pub fn budget(&self) -> Budget {
        let seconds = Duration::from_secs;
        let mut budget = if self.kubernetes {
            Budget::assumed(seconds(30), "what Kubernetes grants unless told otherwise").balancer(true)
        } else if self.windows {
            Budget::assumed(seconds(5), "what Windows grants when a console is closed")
        } else if self.terminal {
            Budget::assumed(seconds(10), "a terminal: nothing kills, but somebody waits")
        } else {
            Budget::default()
        };
        if let Some(text) = &self.grace {
            budget = match parse_duration(text) {
                Ok(grace) => Budget::given(grace, GRACE).balancer(self.kubernetes),
                Err(why) => budget.unreadable(GRACE, text.clone(), why),
            };
        }
        if let Some(text) = &self.prestop {
            budget = match parse_duration(text) {
                Ok(prestop) => budget.prestop_by(prestop, PRESTOP),
                Err(why) => budget.unreadable(PRESTOP, text.clone(), why),
            };
        }
        budget
    }
}

// === impl Budget ===

impl Budget {
    /// Finds out the grace period, and says in the plan which it used and why.
    ///
    /// In this order: `WINDDOWN_GRACE` (a duration such as `30s`; then it is *given*); on Kubernetes 30 s, *assumed*;
    /// on Windows 5 s and anywhere else 10 s, *assumed*. On Kubernetes a balancer has to notice first, so that there is an `unready`.
    /// `WINDDOWN_PRESTOP` is subtracted: Kubernetes counts a preStop hook in the grace, and such a hook takes the place
    /// of `unready`.
    ///
    /// A setting that is no duration is kept and refused by [`plan`](Self::plan).
    pub fn detect() -> Self {
        detect().budget()
    }
}
