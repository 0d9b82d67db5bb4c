//! Runs what users wrote so that a panic or an error in it ends nothing else.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures_util::FutureExt;

use crate::error::BoxError;
use crate::outcome::Outcome;

pub(crate) type Work = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// How work ended, with the words that go into the report.
pub(crate) type Ended = (Outcome, Option<String>);

/// Awaits the future and says how it ended, a panic too.
pub(crate) async fn caught(work: impl Future<Output = Result<(), BoxError>>) -> Ended {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(())) => (Outcome::Finished, None),
        Ok(Err(error)) => (Outcome::Failed, Some(with_sources(&*error))),
        Err(panic) => (Outcome::Panicked, Some(panic_message(&*panic))),
    }
}

/// An error with everything behind it, on one line.
pub(crate) fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let said = error.to_string();
        // Many an error says what its source says as well.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = error.source();
    }
    text
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    match (panic.downcast_ref::<&'static str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a panic without words".to_owned(),
    }
}
