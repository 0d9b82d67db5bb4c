//! Runs what users wrote so that a panic or an error in it ends nothing else.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

use futures_util::FutureExt;

use crate::error::BoxError;
use crate::outcome::Outcome;

pub(crate) type Work = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// How work ended, with the words that go into the report.
pub(crate) type Ended = (Outcome, Option<String>);

/// Awaits the future and says how it ended, a panic too. What the future or its error leaves behind may panic when dropped.
pub(crate) async fn caught(mut work: impl Future<Output = Result<(), BoxError>> + Unpin) -> Ended {
    let ended = AssertUnwindSafe(&mut work).catch_unwind().await;
    quietly(|| drop(work));
    match ended {
        Ok(Ok(())) => (Outcome::Finished, None),
        Ok(Err(error)) => {
            let words = with_sources(&*error);
            quietly(|| drop(error));
            (Outcome::Failed, Some(words))
        }
        Err(panic) => (Outcome::Panicked, Some(panic_message(panic))),
    }
}

/// Calls what users wrote beside their work, such as a drop, a waker, or the words of an error; nothing where it panicked.
pub(crate) fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(panic) => {
            // It may panic when it is dropped, too. That once, it is left where it lies.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            None
        }
    }
}

/// An error with everything behind it, on one line; as far as it can be told.
pub(crate) fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let say = |error: &dyn std::error::Error| {
        quietly(|| error.to_string()).unwrap_or_else(|| "an error whose words panic".to_owned())
    };
    let mut text = say(error);
    let mut source = quietly(|| error.source()).flatten();
    while let Some(error) = source {
        let said = say(error);
        // Many an error says what its source says as well.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = quietly(|| error.source()).flatten();
    }
    text
}

/// What a panic says.
pub(crate) fn panic_message(panic: Box<dyn std::any::Any + Send>) -> String {
    let words = match (panic.downcast_ref::<&'static str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a panic without words".to_owned(),
    };
    quietly(|| drop(panic));
    words
}
