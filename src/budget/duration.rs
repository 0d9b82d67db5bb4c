//! Durations as people write and read them.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// What no length of time that a user gives goes beyond, so that an instant can still be that much later: a year.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

const UNITS: [(&str, u128); 4] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000)];

/// Reads a duration as people write it: `500ms`, `8s`, `1.5s`, `1m30s`, `2h`.
///
/// A number needs its unit (`h`, `m`, `s` or `ms`), larger units come first and each at most once. Spaces are
/// allowed, and what is smaller than a nanosecond is cut off.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(winddown::parse_duration("1m30s").unwrap(), Duration::from_secs(90));
/// assert_eq!(winddown::parse_duration("30").unwrap_err().to_string(), "`30` lacks a unit: write 30s or 30ms");
/// ```
///
/// # Errors
///
/// Says what is wrong with the text and how to write it.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let wrong = |why| DurationError { text: text.to_owned(), why };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong(Why::Empty));
    }
    let mut nanos: u128 = 0;
    let mut smallest = UNITS.len();
    let mut units = &UNITS[..];
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        if number.is_empty() {
            return Err(wrong(Why::NoNumber));
        }
        let (unit, after) =
            split(after.trim_start(), |c| !c.is_ascii_digit() && c != '.' && !c.is_whitespace());
        if unit.is_empty() {
            return Err(wrong(Why::NoUnit(number.to_owned())));
        }
        let Some(known) = UNITS.iter().position(|(name, _)| *name == unit) else {
            return Err(wrong(Why::UnknownUnit(unit.to_owned())));
        };
        let Some(place) = units.iter().position(|(name, _)| *name == unit) else {
            return Err(wrong(Why::Order { unit: UNITS[known].0, after: UNITS[smallest].0 }));
        };
        let part = scaled(number, UNITS[known].1).map_err(&wrong)?;
        nanos = nanos.checked_add(part).ok_or_else(|| wrong(Why::TooLong))?;
        smallest = known;
        units = &units[place + 1..];
        rest = after.trim_start();
    }
    let secs = u64::try_from(nanos / 1_000_000_000).map_err(|_| wrong(Why::TooLong))?;
    Ok(Duration::new(secs, (nanos % 1_000_000_000) as u32))
}

/// A text that is no duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurationError {
    text: String,
    why: Why,
}

/// A duration as people read it: `8 s`, `500 ms`, `1 m 30 s`. With a precision (`{:.3}`), no more decimals than that.
pub(crate) struct Human(pub(crate) Duration);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    Empty,
    NoNumber,
    BadNumber(String),
    NoUnit(String),
    UnknownUnit(String),
    Order { unit: &'static str, after: &'static str },
    TooLong,
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// `number` times `unit` in nanoseconds.
fn scaled(number: &str, unit: u128) -> Result<u128, Why> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(Why::BadNumber(number.to_owned()));
    }
    let whole = whole.parse::<u64>().map_err(|_| Why::TooLong)?;
    // Fifteen decimals of an hour are less than a nanosecond; more would only overflow.
    let fraction = &fraction[..fraction.len().min(15)];
    let part =
        fraction.parse::<u128>().map_err(|_| Why::TooLong)? * unit / 10_u128.pow(fraction.len() as u32);
    Ok(u128::from(whole) * unit + part)
}

// === impl DurationError ===

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text.trim().escape_debug();
        match &self.why {
            Why::Empty => f.write_str("a duration is missing: write 500ms, 8s or 1m30s"),
            Why::NoNumber => write!(f, "`{text}` is no duration: write 500ms, 8s or 1m30s"),
            Why::BadNumber(number) => write!(f, "`{text}` is no duration: `{number}` is no number"),
            Why::NoUnit(number) => write!(f, "`{text}` lacks a unit: write {number}s or {number}ms"),
            Why::UnknownUnit(unit) => {
                write!(f, "`{text}` has an unknown unit `{}`: known are h, m, s and ms", unit.escape_debug())
            }
            Why::Order { unit, after } if unit == after => write!(f, "`{text}` names `{unit}` twice"),
            Why::Order { unit, after } => {
                write!(f, "`{text}` has `{unit}` after `{after}`: larger units come first")
            }
            Why::TooLong => write!(f, "`{text}` is too long: at most {} s fit", u64::MAX),
        }
    }
}

impl Error for DurationError {}

// === impl Human ===

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = f.precision().unwrap_or(9);
        let (secs, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        let text = match (secs, nanos) {
            (0, 0) => "0 s".to_owned(),
            (0, 1..1_000) => format!("{nanos} ns"),
            (0, 1_000..1_000_000) => decimal(u64::from(nanos / 1_000), nanos % 1_000, 3, places) + " µs",
            (0, _) => decimal(u64::from(nanos / 1_000_000), nanos % 1_000_000, 6, places) + " ms",
            (1..60, _) => decimal(secs, nanos, 9, places) + " s",
            _ => {
                let parts = [
                    ((secs / 3600).to_string(), "h"),
                    ((secs / 60 % 60).to_string(), "m"),
                    (decimal(secs % 60, nanos, 9, places), "s"),
                ];
                let parts = parts.iter().filter(|(number, _)| number != "0");
                parts.map(|(number, unit)| format!("{number} {unit}")).collect::<Vec<_>>().join(" ")
            }
        };
        match f.width() {
            Some(width) => write!(f, "{text:>width$}"),
            None => f.write_str(&text),
        }
    }
}

/// `whole` and a fraction of so many digits, cut to `places`, without zeros at its end.
fn decimal(whole: u64, fraction: u32, digits: usize, places: usize) -> String {
    let fraction = format!("{fraction:0digits$}");
    let fraction = fraction[..digits.min(places)].trim_end_matches('0');
    if fraction.is_empty() { whole.to_string() } else { format!("{whole}.{fraction}") }
}
