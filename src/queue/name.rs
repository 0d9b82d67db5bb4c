//! The names of jobs and owners.

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::fmt;
use std::hash::BuildHasher;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name of a job or an owner, in bytes.
const NAME_MAX: usize = 255;

/// What a queue keeps for itself begins so.
const RESERVED: &str = "winddown:";

/// The name of a job, unique among those that its queue holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(super) Arc<str>);

/// Who claims: one process, from its start to its end.
///
/// A process that is started again is another owner, or it would inherit the mark of the one that ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

/// A name that no job or owner can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidName {
    name: String,
    rule: &'static str,
}

// === impl JobId ===

impl JobId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for JobId {
    type Err = InvalidName;

    /// Refuses an empty name, one of more than 255 bytes, control characters, and names that begin with `winddown:`.
    fn from_str(name: &str) -> Result<JobId, InvalidName> {
        checked(name).map(JobId)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Owner ===

impl Owner {
    /// A name that no other process has, nor this one after a restart: `label`, the process id, and a random number.
    ///
    /// What a name must not hold is left out of the label.
    pub fn unique(label: &str) -> Owner {
        let label: String = label.chars().filter(|c| c.is_ascii_graphic() && *c != ':').take(64).collect();
        // The keys of a `RandomState` come from the system's source of randomness, once a thread, and count up from there.
        let random = RandomState::new().hash_one(std::process::id());
        Owner(format!("{label}-{}-{random:016x}", std::process::id()).into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Owner {
    type Err = InvalidName;

    /// Refuses what [`JobId`] refuses. The caller sees to it that the name is unique.
    fn from_str(name: &str) -> Result<Owner, InvalidName> {
        checked(name).map(Owner)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn checked(name: &str) -> Result<Arc<str>, InvalidName> {
    let rule = match name {
        "" => "must not be empty",
        _ if name.len() > NAME_MAX => "must not be longer than 255 bytes",
        _ if has_control(name) => "must not hold control characters",
        _ if name.starts_with(RESERVED) => "must not begin with \"winddown:\"",
        _ => return Ok(name.into()),
    };
    Err(InvalidName { name: name.chars().take(64).collect(), rule })
}

fn has_control(name: &str) -> bool {
    // Each job that is claimed has its name read, and most names are plain.
    match name.is_ascii() {
        true => name.bytes().any(|byte| byte.is_ascii_control()),
        false => name.chars().any(char::is_control),
    }
}

// === impl InvalidName ===

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the name {:?} {}", self.name, self.rule)
    }
}

impl Error for InvalidName {}
