//! What is done with a job.

use std::future::Future;

use super::flight::Leased;
use crate::{BoxError, Cx};

/// What is done with each job that a [worker](super::work) has claimed.
///
/// A plain function is one, `async fn fulfil(order: &Leased<Order>, cx: &Cx) -> Result<(), E>`. What needs something of its own,
/// such as a pool, is a type:
///
/// ```
/// use winddown::Cx;
/// use winddown::queue::{Handler, Leased};
///
/// # struct Pool; impl Pool { async fn fulfil(&self, _: &str, _epoch: u64) -> Result<(), std::io::Error> { Ok(()) } }
/// struct Fulfil { db: Pool }
///
/// impl Handler<String> for Fulfil {
///     type Error = winddown::BoxError;
///
///     async fn handle(&self, order: &Leased<String>, cx: &Cx) -> Result<(), Self::Error> {
///         cx.checkpoint()?;
///         cx.shield(self.db.fulfil(&order.item, order.lease.epoch)).await?;
///         Ok(())
///     }
/// }
/// ```
pub trait Handler<T: Send + Sync + 'static>: Send + Sync + 'static {
    /// Why a job failed; with its sources it becomes the reason that the queue keeps.
    type Error: Into<BoxError>;

    /// Does the job.
    ///
    /// It may be dropped at any `.await` when the drain is over, unless that is [shielded](Cx::shield), and at any `.await` whatever
    /// when the lease is lost. Return what [`Cx::checkpoint`] refuses with `?`: the job goes back and no attempt is used.
    ///
    /// # Errors
    ///
    /// An attempt is used, unless a checkpoint has refused before.
    fn handle(&self, job: &Leased<T>, cx: &Cx) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A function that can be a [`Handler`]; implemented for all `async fn(&Leased<T>, &Cx) -> Result<(), E>`, and not to be named.
///
/// It says for each lifetime that the future is `Send`, for which a bound on the function itself has no words.
pub trait HandlerFn<'a, T: Send + Sync + 'static>: Send + Sync + 'static {
    /// What the future says when the job has failed.
    type Error: Into<BoxError>;
    /// The future.
    type Future: Future<Output = Result<(), Self::Error>> + Send + 'a;

    /// Calls it.
    fn call(&self, job: &'a Leased<T>, cx: &'a Cx) -> Self::Future;
}

// === impl HandlerFn ===

impl<'a, T, F, Fut, E> HandlerFn<'a, T> for F
where
    T: Send + Sync + 'static,
    F: Fn(&'a Leased<T>, &'a Cx) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'a,
    E: Into<BoxError>,
{
    type Error = E;
    type Future = Fut;

    fn call(&self, job: &'a Leased<T>, cx: &'a Cx) -> Fut {
        self(job, cx)
    }
}

// === impl Handler ===

impl<T, F> Handler<T> for F
where
    T: Send + Sync + 'static,
    F: for<'a> HandlerFn<'a, T>,
{
    type Error = BoxError;

    async fn handle(&self, job: &Leased<T>, cx: &Cx) -> Result<(), BoxError> {
        self.call(job, cx).await.map_err(Into::into)
    }
}
